package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// peer is an implementation: ours, or a version of the Go programs.
type peer struct{ name, server, agent string }

const oursName = "ours"

func (p peer) ours() bool { return p.name == oursName }

// front is a kind of frontend.
type front struct {
	name, mode string
	tls        bool
}

var (
	grpcUnix = front{"grpc-uds", "grpc", false}
	grpcTLS  = front{"grpc-tls", "grpc", true}
	httpUnix = front{"http-uds", "http-connect", false}
	httpTLS  = front{"http-tls", "http-connect", true}
)

func (f front) grpc() bool { return f.mode == "grpc" }

// cell is one cell of the matrix.
type cell struct {
	server, agent peer
	front         front
}

func (c cell) String() string {
	return fmt.Sprintf("%s server, %s agent, %s", c.server.name, c.agent.name, c.front.name)
}

// own reports whether both programs are ours.
func (c cell) own() bool { return c.server.ours() && c.agent.ours() }

// startLimit limits the time until a pair is connected on a busy machine.
const startLimit = 30 * time.Second

// The longest intervals at which agents look for servers.
const (
	syncInterval = 500 * time.Millisecond
	syncCap      = time.Second
)

// server is a running proxy-server.
type server struct {
	*process
	health string
}

// agent is a running proxy-agent.
type agent struct {
	*process
	health string
	leases []*lease
}

// rig is a running pair on its own ports, with one front.
type rig struct {
	cell   cell
	folder string
	pki    *pki
	leases []*lease
	// The server's replacements are started with these flags, too.
	serverFlags []string
	server      *server
	agents      []*agent
	count       int
	dial        dialFunc
	// The address for agents, if it is not the server's.
	via string
}

// flags are additional flags of the server and the agent.
type flags struct{ server, agent []string }

// newRig leases ports and starts the cell's server, without an agent.
func newRig(ctx context.Context, c cell, folder string, p *pki, further flags) (*rig, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	leases, err := leasePorts(4)
	if err != nil {
		return nil, err
	}
	r := &rig{cell: c, folder: folder, pki: p, leases: leases, serverFlags: further.server}
	if err := r.startServer(ctx, c.server); err != nil {
		r.stop()
		return nil, err
	}
	if r.dial, err = egressDialer(r); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

// startRig starts the cell's server and agent, and waits until they are connected.
func startRig(ctx context.Context, c cell, folder string, p *pki, further flags) (*rig, error) {
	r, err := newRig(ctx, c, folder, p, further)
	if err != nil {
		return nil, err
	}
	if _, err := r.addAgent(ctx, c.agent, further.agent...); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *rig) agentAddress() string { return r.leases[0].local() }
func (r *rig) frontAddress() string { return r.leases[3].local() }

// socket is short, because a Unix socket's path may have 107 bytes.
func (r *rig) socket() string {
	return filepath.Join(socketFolder, fmt.Sprintf("%d.sock", r.leases[3].port))
}

func (r *rig) startServer(ctx context.Context, p peer) error {
	args := []string{
		"--mode=" + r.cell.front.mode,
		"--server-id=server-0", "--server-count=1",
		fmt.Sprintf("--agent-port=%d", r.leases[0].port), "--agent-bind-address=127.0.0.1",
		fmt.Sprintf("--health-port=%d", r.leases[1].port), "--health-bind-address=127.0.0.1",
		fmt.Sprintf("--admin-port=%d", r.leases[2].port), "--admin-bind-address=127.0.0.1",
		"--cluster-cert=" + r.pki.clusterServer.cert, "--cluster-key=" + r.pki.clusterServer.key,
		"--cluster-ca-cert=" + r.pki.clusterCA,
	}
	if r.cell.front.tls {
		args = append(args,
			fmt.Sprintf("--server-port=%d", r.leases[3].port), "--server-bind-address=127.0.0.1",
			"--server-cert="+r.pki.frontServer.cert, "--server-key="+r.pki.frontServer.key,
			"--server-ca-cert="+r.pki.frontCA)
	} else {
		args = append(args, "--server-port=0", "--uds-name="+r.socket())
	}
	args = append(args, r.serverFlags...)
	name := p.name + " server"
	started, err := startProcess(name, r.logFile("server", p), p.server, args...)
	if err != nil {
		return err
	}
	r.server = &server{started, r.leases[1].local()}
	return r.waitFor(ctx, started, "a healthy "+name, "http://"+r.server.health+"/healthz")
}

// addAgent starts another agent and waits until it is connected to the server.
func (r *rig) addAgent(ctx context.Context, p peer, further ...string) (*agent, error) {
	leases, err := leasePorts(2)
	if err != nil {
		return nil, err
	}
	r.count++
	address := r.agentAddress()
	if r.via != "" {
		address = r.via
	}
	host, port, _ := strings.Cut(address, ":")
	args := []string{
		fmt.Sprintf("--agent-id=agent-%d", r.count),
		"--proxy-server-host=" + host, "--proxy-server-port=" + port,
		"--ca-cert=" + r.pki.clusterCA, "--agent-cert=" + r.pki.agent.cert, "--agent-key=" + r.pki.agent.key,
		"--health-server-host=127.0.0.1", fmt.Sprintf("--health-server-port=%d", leases[0].port),
		"--admin-bind-address=127.0.0.1", fmt.Sprintf("--admin-server-port=%d", leases[1].port),
		"--sync-interval=" + syncInterval.String(), "--sync-interval-cap=" + syncCap.String(),
		"--probe-interval=200ms",
	}
	name := fmt.Sprintf("%s agent %d", p.name, r.count)
	log := r.logFile(fmt.Sprintf("agent-%d", r.count), p)
	started, err := startProcess(name, log, p.agent, append(args, further...)...)
	if err != nil {
		return nil, err
	}
	a := &agent{started, leases[0].local(), leases}
	r.agents = append(r.agents, a)
	if err := r.waitFor(ctx, started, name+" with a server", "http://"+a.health+"/readyz"); err != nil {
		return nil, err
	}
	return a, r.waitFor(ctx, r.server.process, "a server with an agent", "http://"+r.server.health+"/readyz")
}

func (r *rig) logFile(half string, p peer) string {
	return filepath.Join(r.folder, half+"-"+p.name+".log")
}

func (r *rig) waitFor(ctx context.Context, p *process, what, url string) error {
	err := until(ctx, what, startLimit, func() error {
		if !p.alive() {
			return fmt.Errorf("%s has ended", p.name)
		}
		return httpStatus(url, 200)
	})
	if err != nil {
		return p.explain(err)
	}
	return nil
}

// panics returns an error if a process of the pair has panicked.
func (r *rig) panics() error {
	for _, a := range r.agents {
		if line := a.panicked(); line != "" {
			return fault("panic", "%s: %s", a.name, line)
		}
	}
	if r.server != nil {
		if line := r.server.panicked(); line != "" {
			return fault("panic", "%s: %s", r.server.name, line)
		}
	}
	return nil
}

// agent is the first agent.
func (r *rig) agent() *agent { return r.agents[0] }

// stop kills all processes and releases the ports.
func (r *rig) stop() {
	for _, a := range r.agents {
		a.kill()
		for _, l := range a.leases {
			l.release()
		}
	}
	if r.server != nil {
		r.server.kill()
	}
	for _, l := range r.leases {
		l.release()
	}
}
