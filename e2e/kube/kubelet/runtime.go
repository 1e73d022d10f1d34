package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// mainProcess runs in every container, for attach: it answers each line.
const mainProcess = `while read -r line; do echo "heard $line"; done`

// containers run commands as processes of this machine.
type containers struct {
	mu   sync.Mutex
	main map[string]*attachable
}

func newRuntime() *containers { return &containers{main: map[string]*attachable{}} }

func command(args []string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	// No child outlives this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Exec runs a command, on a separate terminal on request.
func (*containers) Exec(_ context.Context, _ string, args []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	cmd := command(args)
	if tty {
		return exited(onTerminal(cmd, in, out, resize))
	}
	cmd.Stdout, cmd.Stderr = out, errs
	if in == nil {
		return exited(cmd.Run())
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(stdin, in)
		_ = stdin.Close()
	}()
	return exited(cmd.Wait())
}

func onTerminal(cmd *exec.Cmd, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	terminal, err := pty.Start(cmd)
	if err != nil {
		return err
	}
	defer terminal.Close()
	go func() {
		for size := range resize {
			_ = pty.Setsize(terminal, &pty.Winsize{Rows: size.Height, Cols: size.Width})
		}
	}()
	if in != nil {
		go func() { _, _ = io.Copy(terminal, in) }()
	}
	if out != nil {
		// A terminal returns EIO when its last process has ended.
		_, _ = io.Copy(out, terminal)
	}
	return cmd.Wait()
}

// exited converts an exit status into the protocol's error.
func exited(err error) error {
	var status *exec.ExitError
	if errors.As(err, &status) {
		return &utilexec.ExitErrorWrapper{ExitError: status}
	}
	return err
}

// Attach connects to the main process of a container, which starts with the first attach.
func (c *containers) Attach(_ context.Context, container string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	process, err := c.process(container)
	if err != nil {
		return err
	}
	if out != nil {
		left := process.listen(out)
		defer process.leave(out)
		if in == nil {
			<-left
			return nil
		}
	}
	_, err = io.Copy(process.stdin, in)
	return err
}

func (c *containers) process(container string) (*attachable, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if process, ok := c.main[container]; ok {
		return process, nil
	}
	cmd := command([]string{"sh", "-c", mainProcess})
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	process := &attachable{stdin: stdin, listeners: map[io.Writer]chan struct{}{}}
	cmd.Stdout, cmd.Stderr = process, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.main[container] = process
	return process, nil
}

// attachable is a running process whose output goes to all attached clients.
type attachable struct {
	stdin     io.Writer
	mu        sync.Mutex
	listeners map[io.Writer]chan struct{}
}

func (a *attachable) listen(out io.Writer) <-chan struct{} {
	left := make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners[out] = left
	return left
}

func (a *attachable) leave(out io.Writer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.listeners, out)
}

// Write passes output on, and removes clients that cannot be written to.
func (a *attachable) Write(bytes []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for listener, left := range a.listeners {
		if _, err := listener.Write(bytes); err != nil {
			delete(a.listeners, listener)
			close(left)
		}
	}
	return len(bytes), nil
}
