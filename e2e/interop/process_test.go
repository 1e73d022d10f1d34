package interop

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a started program. Its output goes to a file; it ends with the test.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

func startProcess(name, log, program string, args ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = file, file
	// A backtrace would load about 50 MiB of debug information into the memory that is measured here.
	cmd.Env = append(os.Environ(), "RUST_BACKTRACE=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	p := &process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) signal(signal syscall.Signal) { _ = p.cmd.Process.Signal(signal) }

// kill ends the process by SIGKILL.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop ends the process by SIGTERM, and by SIGKILL after the grace period.
func (p *process) stop(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.kill()
	}
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// explain adds the end of the process's log to an error.
func (p *process) explain(err error) error {
	text, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if len(lines) > 12 {
		lines = lines[len(lines)-12:]
	}
	return fmt.Errorf("%w\n%s said last:\n  %s", err, p.name, strings.Join(lines, "\n  "))
}

// logHas reports whether the process has logged that text.
func (p *process) logHas(text string) bool {
	content, _ := os.ReadFile(p.log)
	return bytes.Contains(content, []byte(text))
}

// panicked is the line of a panic in the process's log, or empty. It ignores one assertion of h2 0.4.20: debug builds check a
// stream count when a connection that its client has broken is dropped, without further consequences.
func (p *process) panicked() string {
	content, _ := os.ReadFile(p.log)
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, "panicked at ") && !strings.Contains(line, "/proto/streams/counts.rs:") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// peak is the peak resident memory of the process in bytes.
func (p *process) peak() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(text), "VmHWM:")
	fields := strings.Fields(rest)
	if !found || len(fields) < 2 || fields[1] != "kB" {
		return 0, fmt.Errorf("odd status of %s", p.name)
	}
	kibibytes, err := strconv.ParseInt(fields[0], 10, 64)
	return kibibytes << 10, err
}

// until polls a condition; on a time-out it returns the condition's last error.
func until(ctx context.Context, what string, limit time.Duration, condition func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fault("time", "waited %s for %s: %v", limit, what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting for %s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

var scraper = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// httpStatus returns nil if the address answers with that status.
func httpStatus(url string, status int) error {
	response, err := scraper.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != status {
		return fmt.Errorf("%s answered %d", url, response.StatusCode)
	}
	return nil
}

// metric sums all samples of a metric whose line contains each of the labels; an absent metric counts as zero.
func metric(health, name string, labels ...string) (float64, error) {
	response, err := scraper.Get("http://" + health + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		rest, found := strings.CutPrefix(strings.TrimSpace(line), name)
		if !found || (rest[0] != ' ' && rest[0] != '{') || !containsAll(rest, labels) {
			continue
		}
		fields := strings.Fields(rest)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", line, err)
		}
		sum += value
	}
	return sum, nil
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
