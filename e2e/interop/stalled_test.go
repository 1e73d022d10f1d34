package interop

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

const (
	// Others may wait this long while one is stalled: above 8 MiB it has 2 s to show progress, then it is reset.
	patience = 6 * time.Second
	// What one stalled connection may cost each of our halves, in bytes: 8 MiB queued, and room for the allocator.
	memoryLimit = 48 << 20
	watched     = 10 * time.Second
)

func runStalledClient(ctx context.Context, b *bench) (string, error) {
	return b.underStall(ctx, func(stalled context.Context) (net.Conn, error) {
		// The endpoint sends for ever, and nobody reads.
		return dialWithin(stalled, dialLimit, b.dial, b.ends.flood)
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

// underStall watches other connections of the same agent, and memory, while one is stalled.
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
			if err := within(patience, "echo beside a stalled connection", func() error { return echo(others[index], 1000) }); err != nil {
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
	if took, err := awaitDial(ctx, b, patience); err != nil {
		return "", fault("stalled", "no dial within %s: %w", took, err)
	}
	after, err := b.memory()
	if err != nil {
		return "", err
	}
	grown := int64(0)
	for half := range after {
		if grown = max(grown, after[half]-before[half]); grown > memoryLimit {
			return "", fault("memory", "one stalled connection cost %s %d MiB", b.ownProcesses()[half].name, grown>>20)
		}
	}
	resets, err := b.resets("stalled")
	note := fmt.Sprintf("others waited %d ms at most, +%d MiB, %v reset", time.Duration(worst.Load()).Milliseconds(),
		grown>>20, resets)
	return note, err
}

// memory is the most that each of our own processes has had in RAM.
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

// resets counts the connections that our halves broke off for that reason.
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
