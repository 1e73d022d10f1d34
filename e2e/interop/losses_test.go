package interop

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// openEchoes opens connections and uses each of them once.
func openEchoes(ctx context.Context, b *bench, count int) ([]net.Conn, error) {
	conns := make([]net.Conn, count)
	return conns, inParallel(count, 8, func(index int) (err error) {
		if conns[index], err = dialWithin(ctx, dialLimit, b.dial, b.ends.echo); err != nil {
			return err
		}
		return within(10*time.Second, "echo", func() error { return echo(conns[index], 1000) })
	})
}

func echoAll(conns []net.Conn) error {
	return inParallel(len(conns), len(conns), func(index int) error {
		return within(10*time.Second, "echo", func() error { return echo(conns[index], 1000) })
	})
}

func closeAll(conns []net.Conn) {
	for _, conn := range conns {
		if conn != nil {
			go conn.Close()
		}
	}
}

// awaitEnds expects each connection to end, orderly or not.
func awaitEnds(conns []net.Conn, limit time.Duration) error {
	return inParallel(len(conns), len(conns), func(index int) error {
		return within(limit, "the end of a connection", func() error {
			_, _ = io.Copy(io.Discard, conns[index])
			return nil
		})
	})
}

// awaitDial dials until a dial succeeds.
func awaitDial(ctx context.Context, b *bench, limit time.Duration) (time.Duration, error) {
	dial, began := boundDialer(b.rig), time.Now()
	err := until(ctx, "a dial that succeeds", limit, func() error {
		conn, err := dialWithin(ctx, 3*time.Second, dial, b.ends.echo)
		if err != nil {
			return err
		}
		defer func() { go conn.Close() }()
		return within(5*time.Second, "echo", func() error { return echo(conn, 1000) })
	})
	return time.Since(began), err
}

func runAgentLost(ctx context.Context, b *bench) (string, error) {
	conns, err := openEchoes(ctx, b, 8)
	defer closeAll(conns)
	if err != nil {
		return "", err
	}
	b.agent().kill()
	if err := awaitEnds(conns, 5*time.Second); err != nil {
		return "", err
	}
	err = until(ctx, "a refusal without any agent", 3*time.Second, func() error {
		began := time.Now()
		conn, err := dialWithin(ctx, 5*time.Second, b.dial, b.ends.echo)
		if err == nil {
			go conn.Close()
			return fmt.Errorf("it succeeded")
		}
		if took := time.Since(began); took > 3*time.Second {
			return fmt.Errorf("it was refused after %s: %w", took, err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if _, err := b.addAgent(ctx, b.cell.agent); err != nil {
		return "", err
	}
	took, err := awaitDial(ctx, b, 5*time.Second)
	return fmt.Sprintf("served again after %d ms", took.Milliseconds()), err
}

func runAgentLostDialling(ctx context.Context, b *bench) (string, error) {
	endpoint, err := newSilent()
	if err != nil {
		return "", err
	}
	defer endpoint.close()
	answered := make(chan error, 1)
	go func() {
		_, err := b.dial(ctx, endpoint.address)
		answered <- err
	}()
	err = until(ctx, "the agent to dial", 5*time.Second, func() error {
		requests, err := metric(b.agent().health, agentPackets, `segment="to_agent"`, `"DIAL_REQ"`)
		if err == nil && requests < 1 {
			err = fmt.Errorf("not asked yet")
		}
		return err
	})
	if err != nil {
		return "", err
	}
	b.agent().kill()
	began := time.Now()
	select {
	case err := <-answered:
		if err == nil {
			return "", fault("text", "the dial succeeded")
		}
		return fmt.Sprintf("%d ms", time.Since(began).Milliseconds()), nil
	case <-time.After(4 * time.Second):
		return "", fault("time", "no answer within 4 s of the agent's loss")
	}
}

func runServerLost(ctx context.Context, b *bench) (string, error) {
	conns, err := openEchoes(ctx, b, 4)
	defer closeAll(conns)
	if err != nil {
		return "", err
	}
	b.server.kill()
	if err := awaitEnds(conns, 5*time.Second); err != nil {
		return "", err
	}
	if err := b.startServer(ctx, b.cell.server); err != nil {
		return "", err
	}
	took, err := awaitDial(ctx, b, syncCap+syncCap/10+3*time.Second)
	return fmt.Sprintf("back after %d ms", took.Milliseconds()), err
}

// runDrain sends one SIGTERM to one of two agents.
func runDrain(ctx context.Context, b *bench) (string, error) {
	conns, err := openEchoes(ctx, b, 8)
	defer closeAll(conns)
	if err != nil {
		return "", err
	}
	draining := b.agent()
	if _, err := b.addAgent(ctx, b.cell.agent); err != nil {
		return "", err
	}
	draining.signal(syscall.SIGTERM)
	knows := b.cell.server.name != noDrain
	if knows {
		err := until(ctx, "DRAIN at the server", 5*time.Second, func() error {
			// A Go agent sends DRAIN after the next packet that it receives.
			if err := echoAll(conns); err != nil {
				return err
			}
			drains, err := metric(b.server.health, serverPackets, `segment="from_agent"`, `"DRAIN"`)
			if err == nil && drains < 1 {
				err = fmt.Errorf("none came")
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	before, err := metric(draining.health, agentPackets, `segment="to_agent"`, `"DIAL_REQ"`)
	if err != nil {
		return "", err
	}
	further, err := openEchoes(ctx, b, 24)
	defer closeAll(further)
	if err != nil {
		return "", err
	}
	after, err := metric(draining.health, agentPackets, `segment="to_agent"`, `"DIAL_REQ"`)
	if err != nil {
		return "", err
	}
	if knows && after != before {
		return "", fault("asked", "a draining agent was asked for %v of 24 dials", after-before)
	}
	return "", echoAll(conns)
}

// runIdle holds connections without traffic, with all keepalives at 10 s. A Go server ends a connection at the third ping that
// comes within 30 s of the previous one, so within 40 s.
func runIdle(ctx context.Context, b *bench) (string, error) {
	hold := 50 * time.Second
	if b.long {
		hold = 5 * time.Minute
	}
	conns, err := openEchoes(ctx, b, 4)
	defer closeAll(conns)
	if err != nil {
		return "", err
	}
	select {
	case <-time.After(hold):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err := echoAll(conns); err != nil {
		return "", fault("idle", "after %s without traffic: %w", hold, err)
	}
	failures, err := metric(b.agent().health, agentFailures)
	if err != nil {
		return "", err
	}
	if failures > 0 || b.agent().logHas("too_many_pings") || b.server.logHas("too_many_pings") {
		return "", fault("idle", "%v server connections failed, or a ping too many", failures)
	}
	return hold.String(), nil
}
