package interop

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"sync/atomic"
	"time"
)

const watched = 10 * time.Second

// patience is how long other connections may wait while one is stalled. Between two native peers each connection has its own
// credit; with a Go peer a connection with more than 8 MiB queued is reset unless it makes progress within 2 s, and a second
// one may follow.
func (b *bench) patience() time.Duration {
	if b.cell.own() {
		return 2 * time.Second
	}
	return 6 * time.Second
}

// memoryLimit is how much memory one stalled connection may use in each of our programs, in bytes: its credit, or 8 MiB queued,
// and a reserve for the allocator.
func (b *bench) memoryLimit() int64 {
	if b.cell.own() {
		return 24 << 20
	}
	return 48 << 20
}

func runStalledClient(ctx context.Context, b *bench) (string, error) {
	return b.underStall(ctx, func(stalled context.Context) (net.Conn, error) {
		// The endpoint sends endlessly, and after one byte the client stops reading. The endpoint starts on request: a Go server
		// sometimes writes immediate bytes behind the head of its answer, and kube-apiserver refuses that before anything stalls.
		conn, err := openSource(stalled, b, math.MaxInt64, 0)
		if err != nil {
			return nil, err
		}
		err = within(dialLimit, "the first byte of a flood", func() error {
			_, err := io.ReadFull(conn, make([]byte, 1))
			return err
		})
		if err != nil {
			go conn.Close()
			return nil, err
		}
		return conn, nil
	})
}

func runStalledEndpoint(ctx context.Context, b *bench) (string, error) {
	return b.underStall(ctx, func(stalled context.Context) (net.Conn, error) {
		conn, err := dialWithin(stalled, dialLimit, b.dial, b.ends.mute)
		if err == nil {
			go func() {
				block := make([]byte, 64<<10)
				for {
					if _, err := conn.Write(block); err != nil {
						return
					}
				}
			}()
		}
		return conn, err
	})
}

// underStall checks other connections of the same agent, and memory, while one connection is stalled.
func (b *bench) underStall(ctx context.Context, stall func(context.Context) (net.Conn, error)) (string, error) {
	others, err := openEchoes(ctx, b, 4)
	defer closeAll(others)
	if err != nil {
		return "", err
	}
	before, err := b.memory()
	if err != nil {
		return "", err
	}
	stalled, err := stall(ctx)
	if err != nil {
		return "", err
	}
	defer func() { go stalled.Close() }()
	var worst atomic.Int64
	end := time.Now().Add(watched)
	err = inParallel(len(others), len(others), func(index int) error {
		for time.Now().Before(end) {
			began := time.Now()
			if err := within(b.patience(), "echo beside a stalled connection", func() error { return echo(others[index], 1000) }); err != nil {
				return fault("stalled", "%w", err)
			}
			if took := int64(time.Since(began)); took > worst.Load() {
				worst.Store(took)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if took, err := awaitDial(ctx, b, b.patience()); err != nil {
		return "", fault("stalled", "no dial within %s: %w", took, err)
	}
	after, err := b.memory()
	if err != nil {
		return "", err
	}
	grown := int64(0)
	for half := range after {
		if grown = max(grown, after[half]-before[half]); grown > b.memoryLimit() {
			return "", fault("memory", "one stalled connection cost %s %d MiB", b.ownProcesses()[half].name, grown>>20)
		}
	}
	resets, err := b.resets("stalled")
	note := fmt.Sprintf("others waited %d ms at most, +%d MiB, %v reset", time.Duration(worst.Load()).Milliseconds(),
		grown>>20, resets)
	return note, err
}

// memory is the peak resident memory of each of our processes.
func (b *bench) memory() ([]int64, error) {
	var each []int64
	for _, p := range b.ownProcesses() {
		peak, err := p.peak()
		if err != nil {
			return nil, err
		}
		each = append(each, peak)
	}
	return each, nil
}

func (b *bench) ownProcesses() []*process {
	var own []*process
	if b.cell.server.ours() {
		own = append(own, b.server.process)
	}
	if b.cell.agent.ours() {
		own = append(own, b.agent().process)
	}
	return own
}

// resets counts the connections that our programs reset for that reason.
func (b *bench) resets(reason string) (float64, error) {
	sum := 0.0
	for half, health := range map[string]string{"server": b.server.health, "agent": b.agent().health} {
		count, err := metric(health, fmt.Sprintf(connectionReset, half), fmt.Sprintf("reason=%q", reason))
		if err != nil {
			return 0, err
		}
		sum += count
	}
	return sum, nil
}
