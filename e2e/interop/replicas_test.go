package interop

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// balancer passes connections to its backends in turn, like a load balancer in front of server replicas.
type balancer struct {
	listener net.Listener
	backends []string
	next     atomic.Int64
}

func startBalancer(backends ...string) (*balancer, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &balancer{listener: listener, backends: backends}
	go accept(listener, b.serve)
	return b, nil
}

// serve copies bytes until one side ends, and then ends the other; without a backend it closes the client.
func (b *balancer) serve(client net.Conn) {
	backend := b.backends[int(b.next.Add(1))%len(b.backends)]
	server, err := net.DialTimeout("tcp4", backend, 5*time.Second)
	if err != nil {
		return
	}
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			ended <- struct{}{}
		}()
	}
	<-ended
	_ = server.Close()
}

// runReplicas lets one agent find two servers of different implementations behind one address, as during a rolling upgrade of a
// highly available control plane, and reconnect to one of them after it has changed its implementation.
func runReplicas(ctx context.Context, b *bench) (string, error) {
	// In a mixed cell, the second server has the other implementation than the first.
	other := b.cell.server
	switch {
	case b.cell.own(), !b.cell.agent.ours() && !b.cell.server.ours():
	case b.cell.server.ours():
		other = b.golang
	default:
		other = b.own
	}
	var rigs []*rig
	var addresses []string
	for index, p := range []peer{b.cell.server, other} {
		further := flags{server: []string{fmt.Sprintf("--server-id=server-%d", index), "--server-count=2"}}
		c := cell{p, b.cell.agent, b.cell.front}
		r, err := newRig(ctx, c, fmt.Sprintf("%s/%d", b.folder, index), b.pki, further)
		if err != nil {
			return "", err
		}
		defer r.stop()
		rigs, addresses = append(rigs, r), append(addresses, r.agentAddress())
	}
	balancer, err := startBalancer(addresses...)
	if err != nil {
		return "", err
	}
	defer func() { _ = balancer.listener.Close() }()
	first, second := *b, *b
	first.rig, second.rig = rigs[0], rigs[1]
	first.via = balancer.listener.Addr().String()
	if _, err := first.addAgent(ctx, b.cell.agent); err != nil {
		return "", err
	}
	if err := first.found(ctx, second.rig); err != nil {
		return "", err
	}
	conns, err := openEchoes(ctx, &first, 4)
	defer closeAll(conns)
	if err != nil {
		return "", err
	}
	if _, err := awaitDial(ctx, &second, 5*time.Second); err != nil {
		return "", err
	}
	second.server.kill()
	if err := second.startServer(ctx, b.cell.server); err != nil {
		return "", err
	}
	began := time.Now()
	if err := first.found(ctx, second.rig); err != nil {
		return "", err
	}
	took := time.Since(began)
	if _, err := awaitDial(ctx, &second, 5*time.Second); err != nil {
		return "", err
	}
	return fmt.Sprintf("back after %d ms", took.Milliseconds()), echoAll(conns)
}

// found waits until the agent is connected to another server, too.
func (b *bench) found(ctx context.Context, r *rig) error {
	return until(ctx, "the agent at the other server", 4*syncCap+10*time.Second, func() error {
		return httpStatus("http://"+r.server.health+"/readyz", 200)
	})
}
