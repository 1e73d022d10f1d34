// Package interop runs our programs against the Go ones: kube-apiserver's egress selector as the client, and released versions
// of the Go server and agent as peers. hack/interop starts it and prints the results.
//
// It links against none of our code. Every connection stays on the loopback interface.
package interop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// socketFolder contains the Unix sockets, whose paths must be short.
var socketFolder string

// settings are read from the environment, which hack/interop sets.
type settings struct {
	own       peer
	golang    []peer
	out       string
	long      bool
	cells     *regexp.Regexp
	scenarios *regexp.Regexp
	atOnce    int
}

func readSettings() (settings, error) {
	s := settings{
		own:    peer{oursName, os.Getenv("INTEROP_SERVER"), os.Getenv("INTEROP_AGENT")},
		out:    os.Getenv("INTEROP_OUT"),
		long:   os.Getenv("INTEROP_LONG") == "true",
		atOnce: 4,
	}
	for _, folder := range strings.Fields(os.Getenv("INTEROP_PEERS")) {
		s.golang = append(s.golang, peer{filepath.Base(folder), filepath.Join(folder, "server"), filepath.Join(folder, "agent")})
	}
	if s.own.server == "" || s.own.agent == "" || s.out == "" || len(s.golang) == 0 {
		return s, fmt.Errorf("INTEROP_SERVER, INTEROP_AGENT, INTEROP_PEERS and INTEROP_OUT are needed: run hack/interop")
	}
	for _, p := range append([]peer{s.own}, s.golang...) {
		for _, program := range []string{p.server, p.agent} {
			if _, err := os.Stat(program); err != nil {
				return s, fmt.Errorf("%s is missing: run hack/interop: %w", program, err)
			}
		}
	}
	var err error
	if s.cells, err = regexp.Compile(os.Getenv("INTEROP_CELLS")); err != nil {
		return s, fmt.Errorf("INTEROP_CELLS: %w", err)
	}
	if s.scenarios, err = regexp.Compile(os.Getenv("INTEROP_CASES")); err != nil {
		return s, fmt.Errorf("INTEROP_CASES: %w", err)
	}
	return s, nil
}

// cells are all cells of the matrix: our pair with every front, and for each Go version the three mixed and Go pairs in both
// modes.
func (s settings) allCells() []cell {
	var cells []cell
	for _, f := range []front{grpcUnix, grpcTLS, httpUnix, httpTLS} {
		cells = append(cells, cell{s.own, s.own, f})
	}
	for _, g := range s.golang {
		for _, f := range []front{grpcUnix, httpUnix} {
			cells = append(cells, cell{s.own, g, f}, cell{g, s.own, f}, cell{g, g, f})
		}
	}
	var wanted []cell
	for _, c := range cells {
		if s.cells.MatchString(c.String()) {
			wanted = append(wanted, c)
		}
	}
	return wanted
}

// version is the Go peer of the cell's column.
func (s settings) version(c cell) peer {
	switch {
	case !c.server.ours():
		return c.server
	case !c.agent.ours():
		return c.agent
	}
	return peer{}
}

func TestMatrix(t *testing.T) {
	s, err := readSettings()
	if err != nil {
		t.Fatal(err)
	}
	if err := silenceClients(); err != nil {
		t.Fatal(err)
	}
	if socketFolder, err = os.MkdirTemp("", "knp"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(socketFolder) }()
	r, err := newRunner(s)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	outcomes := r.runAll(context.Background())
	outcomes = r.judgeAll(context.Background(), outcomes)
	if err := writeReport(s, outcomes, time.Since(began)); err != nil {
		t.Error(err)
	}
	for _, o := range outcomes {
		if o.Verdict == failed {
			t.Errorf("%s: %s: %s", o.cell, o.Case, o.Detail)
		}
	}
}

// silenceClients keeps the client library from logging each connection that a scenario breaks intentionally.
func silenceClients() error {
	set := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(set)
	klog.SetOutput(io.Discard)
	return errors.Join(set.Set("logtostderr", "false"), set.Set("stderrthreshold", "FATAL"))
}

// runner runs scenarios in cells.
type runner struct {
	settings
	pki  *pki
	ends *endpoints
	// busy limits scenarios that need CPU, patient those that mostly wait.
	busy, patient chan struct{}

	lock     sync.Mutex
	outcomes []outcome
}

func newRunner(s settings) (*runner, error) {
	folder := filepath.Join(s.out, "logs")
	if err := os.RemoveAll(folder); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	certificates, err := newPKI(folder)
	if err != nil {
		return nil, err
	}
	ends, err := startEndpoints()
	if err != nil {
		return nil, err
	}
	return &runner{
		settings: s, pki: certificates, ends: ends,
		busy: make(chan struct{}, s.atOnce), patient: make(chan struct{}, 16),
	}, nil
}

// runAll runs all selected scenarios.
func (r *runner) runAll(ctx context.Context) []outcome {
	var jobs sync.WaitGroup
	start := func(limit chan struct{}, c cell, group []scenario) {
		if len(group) == 0 {
			return
		}
		jobs.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			r.runGroup(ctx, c, group)
		})
	}
	for _, c := range r.allCells() {
		var working, waiting []scenario
		for _, one := range scenarios {
			switch {
			case !one.applies(c) || !r.scenarios.MatchString(one.name):
			case one.name == "idle":
				start(r.patient, c, []scenario{one})
			case one.fresh || one.bare:
				start(r.busy, c, []scenario{one})
			case one.waits:
				waiting = append(waiting, one)
			default:
				working = append(working, one)
			}
		}
		start(r.patient, c, waiting)
		start(r.busy, c, working)
	}
	jobs.Wait()
	return r.outcomes
}

// runGroup runs scenarios in sequence with one pair; after a failure it starts a new pair.
func (r *runner) runGroup(ctx context.Context, c cell, group []scenario) {
	var shared *rig
	for _, one := range group {
		began := time.Now()
		limit := one.limit
		if limit == 0 {
			limit = time.Minute
		}
		limited, cancel := context.WithTimeout(ctx, limit+startLimit)
		var note string
		var err error
		folder := r.folder(c, one)
		if shared == nil && !one.bare {
			shared, err = startRig(limited, c, folder, r.pki, one.flags)
		}
		if err == nil {
			work := shared
			if one.bare {
				work = &rig{cell: c, folder: folder, pki: r.pki}
				err = os.MkdirAll(folder, 0o755)
			}
			if err == nil {
				b := &bench{rig: work, ends: r.ends, long: r.long, golang: r.version(c), own: r.own}
				note, err = one.run(limited, b)
				err = errors.Join(err, b.panics())
			}
		}
		cancel()
		if err != nil && shared != nil {
			shared.stop()
			shared = nil
		}
		r.record(c, one, note, err, time.Since(began))
	}
	if shared != nil {
		shared.stop()
		_ = os.RemoveAll(shared.folder)
	}
}

func (r *runner) folder(c cell, s scenario) string {
	name := strings.Join([]string{c.server.name, c.agent.name, c.front.name, s.name}, "-")
	return filepath.Join(r.out, "logs", strings.ReplaceAll(name, " ", "-"))
}

func (r *runner) record(c cell, s scenario, note string, err error, took time.Duration) {
	o := outcome{
		cell: c, Server: c.server.name, Agent: c.agent.name, Front: c.front.name, Version: r.version(c).name,
		Case: s.name, Verdict: passed, Note: note, Seconds: took.Seconds(), control: s.control,
	}
	if err != nil {
		o.Verdict, o.Kind, o.Detail = failed, kindOf(err), err.Error()
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	r.outcomes = append(r.outcomes, o)
	if os.Getenv("INTEROP_VERBOSE") == "true" {
		fmt.Printf("%-6s %5.1f s  %s: %s  %s\n", o.Verdict, o.Seconds, c, s.name, strings.TrimSpace(o.Note+" "+firstLine(o.Detail)))
	}
}
