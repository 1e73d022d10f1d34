package interop

import (
	"context"
	"errors"
	"testing"
	"time"
)

// verdict is the content of a cell of the matrix.
type verdict string

const (
	passed verdict = "pass"
	failed verdict = "fail"
	// excused: the scenario failed, and the two Go peers of that version failed in the same way with the same front.
	excused verdict = "Go fails too"
	// defect: two Go peers fail with each other. It is shown, and does not concern our programs.
	defect verdict = "Go fails"
)

// outcome is one scenario in one cell.
type outcome struct {
	cell    cell
	control bool

	Server  string  `json:"server"`
	Agent   string  `json:"agent"`
	Front   string  `json:"front"`
	Version string  `json:"version,omitempty"`
	Case    string  `json:"case"`
	Verdict verdict `json:"verdict"`
	Kind    string  `json:"kind,omitempty"`
	Detail  string  `json:"detail,omitempty"`
	Note    string  `json:"note,omitempty"`
	Seconds float64 `json:"seconds"`
}

// goPair reports whether both programs are of the same Go version.
func (o outcome) goPair() bool { return !o.cell.server.ours() && !o.cell.agent.ours() }

type question struct{ version, front, name string }

func (o outcome) question() question { return question{o.Version, o.Front, o.Case} }

// judge excuses failures with a Go peer that two Go peers show as well, and only those. A scenario that two Go peers must pass,
// so that the comparison has a meaning, remains a failure.
func judge(outcomes []outcome) []outcome {
	kinds := make(map[question]map[string]bool)
	for _, o := range outcomes {
		if o.goPair() && o.Verdict != passed {
			if kinds[o.question()] == nil {
				kinds[o.question()] = make(map[string]bool)
			}
			kinds[o.question()][o.Kind] = true
		}
	}
	judged := make([]outcome, 0, len(outcomes))
	for _, o := range outcomes {
		switch {
		case o.Verdict == passed || o.cell.own() || o.control:
		case o.goPair():
			o.Verdict = defect
		case kinds[o.question()][o.Kind]:
			o.Verdict = excused
		}
		judged = append(judged, o)
	}
	return judged
}

// judgeAll judges; if a cell with a Go peer fails and two Go peers passed, it runs the latter several more times, because a
// race in the Go programs does not show each time.
func (r *runner) judgeAll(ctx context.Context, outcomes []outcome) []outcome {
	for range 3 {
		asked := make(map[question]bool)
		for _, o := range judge(outcomes) {
			if o.Verdict != failed || o.cell.own() || o.goPair() || o.control || asked[o.question()] {
				continue
			}
			asked[o.question()] = true
			for _, one := range scenarios {
				if one.name == o.Case {
					golang := r.version(o.cell)
					r.runGroup(ctx, cell{golang, golang, o.cell.front}, []scenario{one})
				}
			}
		}
		outcomes = r.outcomes
	}
	return lastWord(judge(outcomes))
}

// lastWord keeps one outcome of each cell: a failure, if there was one.
func lastWord(outcomes []outcome) []outcome {
	type square struct {
		cell cell
		name string
	}
	index := make(map[square]int)
	var last []outcome
	for _, o := range outcomes {
		key := square{o.cell, o.Case}
		at, found := index[key]
		switch {
		case !found:
			index[key] = len(last)
			last = append(last, o)
		case last[at].Verdict == passed:
			last[at] = o
		}
	}
	return last
}

func TestVerdicts(t *testing.T) {
	own, golang := peer{name: oursName}, peer{name: "v1"}
	result := func(server, agent peer, kind string, control bool) outcome {
		o := outcome{
			cell: cell{server, agent, grpcUnix}, Version: "v1", Front: grpcUnix.name, Case: "c", Verdict: passed,
			Kind: kind, control: control,
		}
		if kind != "" {
			o.Verdict = failed
		}
		return o
	}
	for _, one := range []struct {
		about    string
		outcomes []outcome
		wanted   verdict
	}{
		{"a pass", []outcome{result(own, golang, "", false)}, passed},
		{"our own cell is never excused", []outcome{result(own, own, "time", false), result(golang, golang, "time", false)}, failed},
		{"the same failure of Go excuses", []outcome{result(own, golang, "time", false), result(golang, golang, "time", false)}, excused},
		{"another failure of Go does not", []outcome{result(own, golang, "time", false), result(golang, golang, "text", false)}, failed},
		{"Go's success does not", []outcome{result(golang, own, "time", false), result(golang, golang, "", false)}, failed},
		{"no run of Go does not", []outcome{result(golang, own, "time", false)}, failed},
		{"Go's own failure is shown", []outcome{result(golang, golang, "time", false)}, defect},
		{"a control must pass", []outcome{result(golang, golang, "time", true)}, failed},
		{"a control excuses nobody", []outcome{result(own, golang, "time", true), result(golang, golang, "time", true)}, failed},
	} {
		if got := judge(one.outcomes)[0].Verdict; got != one.wanted {
			t.Errorf("%s: %s instead of %s", one.about, got, one.wanted)
		}
	}
}

func TestKindsOfFailures(t *testing.T) {
	for _, one := range []struct {
		err    error
		wanted string
	}{
		{fault("lost", "no byte"), "lost"},
		{errors.Join(fault("gap", "none")), "gap"},
		{context.DeadlineExceeded, "time"},
		{errors.New("anything"), "error"},
		{within(time.Millisecond, "nothing", func() error { time.Sleep(time.Second); return nil }), "time"},
	} {
		if got := kindOf(one.err); got != one.wanted {
			t.Errorf("%v is %s, not %s", one.err, got, one.wanted)
		}
	}
}

func TestWaysThroughTheMatrix(t *testing.T) {
	own, golang := peer{name: oursName}, peer{name: "v1"}
	for _, c := range []cell{{own, golang, httpUnix}, {golang, own, httpUnix}, {golang, golang, httpUnix}} {
		first, steps := rolls(c, own, golang)
		at, passes := first, 0
		for _, one := range steps {
			if one.half == "server" {
				at.server = one.by
			} else {
				at.agent = one.by
			}
			if at == c {
				passes++
			}
		}
		if at != first || passes < 2 {
			t.Errorf("%s: starts with %s, ends with %s, passes %d times", c, first, at, passes)
		}
	}
}
