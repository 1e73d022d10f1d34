package interop

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// manyStreams is the number of streams of one connection in the long run.
const manyStreams = 10_000

// connections counts the HTTP/2 connections of a client.
type connections struct{ opened atomic.Int64 }

func (c *connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *connections) HandleConn(_ context.Context, event stats.ConnStats) {
	if _, ok := event.(*stats.ConnBegin); ok {
		c.opened.Add(1)
	}
}

// reusable is the client library's tunnel with one HTTP/2 connection for all dials.
type reusable struct {
	konnectivity.ReusableTunnel
	connections
}

func openReusable(ctx context.Context, r *rig) (*reusable, error) {
	target, options, err := grpcTarget(r)
	if err != nil {
		return nil, err
	}
	t := &reusable{}
	// The shortest interval that grpc-go permits.
	alive := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true})
	t.ReusableTunnel, err = konnectivity.CreateGRPCTunnel(ctx, "passthrough:///"+target,
		append(options, alive, grpc.WithStatsHandler(&t.connections))...)
	return t, err
}

func (t *reusable) open(ctx context.Context, address string) (net.Conn, error) {
	return dialWithin(ctx, dialLimit, func(ctx context.Context, address string) (net.Conn, error) {
		return t.DialContext(ctx, "tcp", address)
	}, address)
}

func (t *reusable) openMany(ctx context.Context, count int, address string) ([]net.Conn, error) {
	conns := make([]net.Conn, count)
	err := inParallel(count, 100, func(index int) (err error) {
		conns[index], err = t.open(ctx, address)
		return err
	})
	return conns, err
}

// used reports an error if the tunnel has not used exactly that many connections.
func (t *reusable) used(count int64) error {
	if opened := t.opened.Load(); opened != count {
		return fault("connections", "%d HTTP/2 connections, not %d", opened, count)
	}
	return nil
}

func (t *reusable) echoMany(conns []net.Conn, length int) error {
	return inParallel(len(conns), 100, func(index int) error {
		return within(dialLimit, "echo", func() error { return echo(conns[index], length) })
	})
}

// runReusable holds many connections at once; in the long run ten thousand.
func runReusable(ctx context.Context, b *bench) (string, error) {
	const count = 1_000
	tunnel, err := openReusable(ctx, b.rig)
	if err != nil {
		return "", err
	}
	defer func() { go tunnel.Close() }()
	conns, err := tunnel.openMany(ctx, count, b.ends.echo)
	if err != nil {
		return "", err
	}
	if err := tunnel.echoMany(conns, 10_000); err != nil {
		return "", err
	}
	// In one cell, because the endpoints of all cells share this process's descriptors. An echo takes three, a mute one.
	if b.long && b.cell.own() && b.cell.front == grpcUnix {
		idle, err := tunnel.openMany(ctx, manyStreams-count, b.ends.mute)
		if err != nil {
			return "", err
		}
		conns = append(conns, idle...)
	}
	if err := tunnel.echoMany(conns[:count], 10_000); err != nil {
		return "", err
	}
	closing := inParallel(len(conns), 100, func(index int) error {
		err := within(dialLimit, "close", conns[index].Close)
		// The library ends the stream when it has the CLOSE_RSP, and then reports either of the two.
		if err != nil && err.Error() == "tunnel closed" {
			return nil
		}
		return err
	})
	if closing != nil {
		return "", closing
	}
	return fmt.Sprintf("%d streams", len(conns)), tunnel.used(1)
}

// runReusableStalled measures small echoes alone, and beside clients and endpoints that do not read. The tunnel's connections
// close if their reader takes nothing for 10 s, so these streams are opened without it. Their windows stay at 64 KiB: otherwise
// grpc-go lets each stalled stream buffer up to 16 MiB.
func runReusableStalled(ctx context.Context, b *bench) (string, error) {
	count := 200
	if b.long {
		count = 1_000
	}
	conn, proxy, err := sharedClient(b, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	others := make([]*dialledStream, 8)
	for index := range others {
		if others[index], err = dialStream(ctx, proxy, b.ends.echo); err != nil {
			return "", err
		}
	}
	alone, err := latencies(others)
	if err != nil {
		return "", err
	}
	err = inParallel(count, 50, func(int) error { return stallBothWays(ctx, b, proxy) })
	if err != nil {
		return "", err
	}
	if err := b.awaitStall(ctx); err != nil {
		return "", err
	}
	beside, err := latencies(others)
	if err == nil {
		err = within(dialLimit, "3 MiB", func() error { return others[0].echo(3 << 20) })
	}
	if err != nil {
		return "", fault("stalled", "%w", err)
	}
	resets, err := b.resets("stalled")
	if err == nil && resets > 0 {
		err = fault("stalled", "%v were reset", resets)
	}
	return fmt.Sprintf("p99 %.1f ms alone, %.1f ms beside %d that stall each way", milliseconds(alone), milliseconds(beside), count), err
}

// stallBothWays opens a stream that is not read although its endpoint sends endlessly, and one whose endpoint does not read.
func stallBothWays(ctx context.Context, b *bench, proxy client.ProxyServiceClient) error {
	flood, err := dialStream(ctx, proxy, b.ends.source)
	if err != nil {
		return err
	}
	request := binary.BigEndian.AppendUint64(nil, math.MaxInt64)
	if err := flood.write(binary.BigEndian.AppendUint64(request, 0)); err != nil {
		return err
	}
	muted, err := dialStream(ctx, proxy, b.ends.mute)
	if err != nil {
		return err
	}
	go func() {
		// grpc-go takes a buffer of 1 MiB for a message above 32 KiB.
		block := make([]byte, 16<<10)
		for muted.write(block) == nil {
		}
	}()
	return nil
}

// awaitStall waits until our server has handled no packet for a second.
func (b *bench) awaitStall(ctx context.Context) error {
	last, since := -1.0, time.Now()
	return until(ctx, "stalled streams", 2*time.Minute, func() error {
		packets, err := metric(b.server.health, serverPackets)
		if err != nil || packets != last {
			last, since = packets, time.Now()
		}
		if time.Since(since) < time.Second {
			return fmt.Errorf("%v packets", packets)
		}
		return nil
	})
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// latencies is the 99th percentile of small echoes within 5 s.
func latencies(streams []*dialledStream) (time.Duration, error) {
	var lock sync.Mutex
	var times []time.Duration
	end := time.Now().Add(5 * time.Second)
	err := inParallel(len(streams), len(streams), func(index int) error {
		for time.Now().Before(end) {
			began := time.Now()
			if err := within(dialLimit, "echo", func() error { return streams[index].echo(1000) }); err != nil {
				return err
			}
			lock.Lock()
			times = append(times, time.Since(began))
			lock.Unlock()
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	slices.Sort(times)
	return times[len(times)*99/100], nil
}

// runReusableCancelled cancels many dials at once, while other connections go on.
func runReusableCancelled(ctx context.Context, b *bench) (string, error) {
	rounds := 2
	if b.long {
		rounds = 10
	}
	endpoint, err := newSilent()
	if err != nil {
		return "", err
	}
	defer endpoint.close()
	tunnel, err := openReusable(ctx, b.rig)
	if err != nil {
		return "", err
	}
	defer func() { go tunnel.Close() }()
	others, err := tunnel.openMany(ctx, 8, b.ends.echo)
	if err != nil {
		return "", err
	}
	const count = 1_000
	for round := range rounds {
		// The first dials are canceled before the server has read them, the others later.
		wait := time.Duration(round) * 100 * time.Millisecond
		dialing, cancel := context.WithTimeout(ctx, wait)
		err := inParallel(count, count, func(int) error {
			conn, err := tunnel.DialContext(dialing, "tcp", endpoint.address)
			if err == nil {
				go conn.Close()
				return fault("text", "a dial to a silent endpoint succeeded")
			}
			return nil
		})
		cancel()
		if err != nil {
			return "", err
		}
		if err := tunnel.echoMany(others, 10_000); err != nil {
			return "", err
		}
	}
	conn, err := tunnel.open(ctx, b.ends.echo)
	if err != nil {
		return "", err
	}
	if err := tunnel.echoMany([]net.Conn{conn}, 10_000); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d dials", rounds*count), tunnel.used(1)
}

// runReusableShutdown replaces a server under load, as an upgrade does that starts the successor beside the draining server: the
// tunnel moves to the successor's connection, no dial fails, and connections of the old server go on.
func runReusableShutdown(ctx context.Context, b *bench) (string, error) {
	tunnel, err := openReusable(ctx, b.rig)
	if err != nil {
		return "", err
	}
	defer func() { go tunnel.Close() }()
	held, err := tunnel.openMany(ctx, 20, b.ends.echo)
	if err != nil {
		return "", err
	}
	var dials atomic.Int64
	loading, stop := context.WithCancel(ctx)
	failed := make(chan error, 8)
	for range cap(failed) {
		go func() {
			for loading.Err() == nil {
				conn, err := tunnel.open(ctx, b.ends.echo)
				if err == nil {
					err = echo(conn, 1000)
					_ = conn.Close()
				}
				if err != nil {
					failed <- err
					return
				}
				dials.Add(1)
			}
			failed <- nil
		}()
	}
	successor := &rig{cell: b.cell, folder: filepath.Join(b.folder, "successor"), pki: b.pki}
	defer successor.stop()
	err = moveToSuccessor(ctx, b, successor, &dials)
	stop()
	for range cap(failed) {
		if lost := <-failed; lost != nil {
			err = fault("dials", "after %d: %w", dials.Load(), errors.Join(lost, err))
		}
	}
	if err == nil {
		err = tunnel.echoMany(held, 10_000)
	}
	return fmt.Sprintf("%d dials, %d connections", dials.Load(), tunnel.opened.Load()), err
}

// moveToSuccessor returns after further dials by the successor.
func moveToSuccessor(ctx context.Context, b *bench, successor *rig, dials *atomic.Int64) error {
	more := func(what string) error {
		before := dials.Load()
		return until(ctx, what, 20*time.Second, func() error {
			if dials.Load() < before+200 {
				return fmt.Errorf("%d dials", dials.Load()-before)
			}
			return nil
		})
	}
	if err := more("dials before the shutdown"); err != nil {
		return err
	}
	b.server.signal(syscall.SIGTERM)
	if err := more("dials of the draining server"); err != nil {
		return err
	}
	leases, err := leasePorts(4)
	if err != nil {
		return err
	}
	successor.leases = leases
	if err := os.Mkdir(successor.folder, 0o755); err != nil {
		return err
	}
	if err := successor.startServer(ctx, b.cell.server); err != nil {
		return err
	}
	if _, err := successor.addAgent(ctx, b.cell.agent); err != nil {
		return err
	}
	// With an agent, so that no dial finds the successor without one.
	if err := os.Rename(successor.socket(), b.socket()); err != nil {
		return err
	}
	return until(ctx, "dials of the successor", 20*time.Second, func() error {
		dials, err := metric(successor.server.health, serverPackets, `segment="from_client"`, `"DIAL_REQ"`)
		if err == nil && dials < 200 {
			err = fmt.Errorf("%v dials", dials)
		}
		return err
	})
}
