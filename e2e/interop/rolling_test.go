package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// step replaces the server or the agent by an implementation.
type step struct {
	half string
	by   peer
}

// rolls returns the steps from the Go pair to ours and back, which pass through the cell twice: in a cell with our server the
// server is replaced first. Two programs of one implementation are replaced by the same implementation.
func rolls(c cell, own, golang peer) (first cell, steps []step) {
	switch {
	case c.own():
		return c, []step{{"server", own}, {"agent", own}, {"server", own}, {"agent", own}}
	case c.server.ours():
		first = cell{golang, golang, c.front}
		return first, []step{{"server", own}, {"agent", own}, {"agent", golang}, {"server", golang}}
	case c.agent.ours():
		first = cell{golang, golang, c.front}
		return first, []step{{"agent", own}, {"server", own}, {"server", golang}, {"agent", golang}}
	default:
		return c, []step{{"server", golang}, {"agent", golang}, {"server", golang}, {"agent", golang}}
	}
}

// maxGap is the longest permitted time without a successful dial: a server's stop and start, the agent's reconnect, and a
// reserve for a busy machine.
const maxGap = syncCap + syncCap/10 + 4*time.Second

// rollingLoad dials, echoes and closes repeatedly, and records when it last succeeded.
type rollingLoad struct {
	lock             sync.Mutex
	last             time.Time
	gap              time.Duration
	good, bad        int
	corrupt, lastBad error
}

func (l *rollingLoad) saw(err error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if err == nil {
		l.gap = max(l.gap, time.Since(l.last))
		l.last = time.Now()
		l.good++
		return
	}
	l.bad++
	l.lastBad = err
	if kindOf(err) == "corrupt" {
		l.corrupt = err
	}
}

func (l *rollingLoad) successes() int {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.good
}

func (l *rollingLoad) run(ctx context.Context, b *bench) {
	dial := boundDialer(b.rig)
	for ctx.Err() == nil {
		conn, err := dialWithin(ctx, 2*time.Second, dial, b.ends.echo)
		if err == nil {
			err = within(5*time.Second, "echo", func() error { return echo(conn, 40_000) })
			go conn.Close()
		}
		if ctx.Err() != nil && (err == nil || kindOf(err) != "corrupt") {
			return
		}
		l.saw(err)
		time.Sleep(20 * time.Millisecond)
	}
}

func runRolling(ctx context.Context, b *bench) (string, error) {
	first, steps := rolls(b.cell, b.own, b.golang)
	rig, err := startRig(ctx, first, b.folder, b.pki, flags{})
	if err != nil {
		return "", err
	}
	defer rig.stop()
	loaded := *b
	loaded.rig = rig
	load := &rollingLoad{last: time.Now()}
	workers, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() { load.run(workers, &loaded) })
	}
	for _, one := range steps {
		if err = loaded.replace(ctx, one); err != nil {
			break
		}
		// Some load with the new pair before the next step.
		before := load.successes()
		err = until(ctx, fmt.Sprintf("load after a new %s %s", one.by.name, one.half), 10*time.Second, func() error {
			if load.successes() < before+40 {
				return fmt.Errorf("%d succeeded", load.successes()-before)
			}
			return nil
		})
		if err != nil {
			break
		}
	}
	stop()
	running.Wait()
	if err != nil {
		return "", errors.Join(err, load.lastBad)
	}
	note := fmt.Sprintf("%d dials, %d failed, %.1f s without at most", load.good+load.bad, load.bad, load.gap.Seconds())
	switch {
	case load.corrupt != nil:
		return "", load.corrupt
	case load.gap > maxGap:
		return "", fault("gap", "no dial succeeded for %s: %w", load.gap, load.lastBad)
	}
	return note, nil
}

// grace is how long a stopped program may continue.
const grace = time.Second

func (b *bench) replace(ctx context.Context, s step) error {
	if s.half == "server" {
		b.server.stop(grace)
		return b.startServer(ctx, s.by)
	}
	// As a Deployment does: first the new pod, then SIGTERM, then SIGKILL for the old one.
	old := b.agent()
	if _, err := b.addAgent(ctx, s.by); err != nil {
		return err
	}
	old.stop(grace)
	for _, l := range old.leases {
		l.release()
	}
	b.agents = b.agents[1:]
	return nil
}
