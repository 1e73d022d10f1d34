package interop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const dialLimit = 20 * time.Second

// echo writes that many bytes in one write and expects the same bytes back.
func echo(conn net.Conn, length int) error {
	sent := make([]byte, length)
	_, _ = io.ReadFull(pattern(rand.Uint64(), int64(length)), sent)
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		written <- err
	}()
	received := make([]byte, length)
	if _, err := io.ReadFull(conn, received); err != nil {
		return fault("echo", "read back %d bytes: %w", length, err)
	}
	if !bytes.Equal(sent, received) {
		return fault("corrupt", "%d bytes came back changed", length)
	}
	return <-written
}

func runEcho(ctx context.Context, b *bench) (string, error) {
	conn, err := dialWithin(ctx, dialLimit, b.dial, b.ends.echo)
	if err != nil {
		return "", err
	}
	defer func() { go conn.Close() }()
	return "", within(20*time.Second, "echo", func() error {
		for _, length := range []int{1, 2, 1000, 65_536, 1 << 20, 3 << 20, 1} {
			if err := echo(conn, length); err != nil {
				return err
			}
		}
		return nil
	})
}

func runBulk(ctx context.Context, b *bench) (string, error) {
	const length = 16 << 20
	conn, err := dialWithin(ctx, dialLimit, b.dial, b.ends.echo)
	if err != nil {
		return "", err
	}
	defer func() { go conn.Close() }()
	began := time.Now()
	seed := rand.Uint64()
	failed := make(chan error, 1)
	go func() {
		// Hides WriteTo and ReadFrom, so that writes have 32 KiB.
		_, err := io.Copy(struct{ io.Writer }{conn}, pattern(seed, length))
		failed <- err
	}()
	sum := sha256.New()
	err = within(40*time.Second, "16 MiB both ways", func() error {
		_, err := io.CopyN(sum, conn, length)
		return errors.Join(err, <-failed)
	})
	if err != nil {
		return "", err
	}
	if [sha256.Size]byte(sum.Sum(nil)) != patternSum(seed, length) {
		return "", fault("corrupt", "16 MiB came back changed")
	}
	return fmt.Sprintf("%.0f MiB/s", 2*16/time.Since(began).Seconds()), nil
}

// openSink dials the sink and sends the connection's name; returns after the sink has received it.
func openSink(ctx context.Context, b *bench) (net.Conn, uint64, error) {
	conn, err := dialWithin(ctx, dialLimit, b.dial, b.ends.sink)
	if err != nil {
		return nil, 0, err
	}
	name := rand.Uint64()
	if _, err = conn.Write(binary.BigEndian.AppendUint64(nil, name)); err != nil {
		return nil, 0, err
	}
	return conn, name, within(10*time.Second, "the sink's answer", func() error {
		_, err := io.ReadFull(conn, make([]byte, 1))
		return err
	})
}

func runClientCloses(ctx context.Context, b *bench) (string, error) {
	conn, name, err := openSink(ctx, b)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := within(5*time.Second, "close", conn.Close); err != nil {
		return "", err
	}
	report, err := b.ends.awaitSunk(name, 5*time.Second)
	if err != nil {
		return "", err
	}
	if report.err != nil {
		return "", fault("reset", "the endpoint saw %w instead of an end", report.err)
	}
	return fmt.Sprintf("%d ms", time.Since(began).Milliseconds()), nil
}

// openSource dials the source, which then sends that many bytes of the pattern.
func openSource(ctx context.Context, b *bench, length, seed uint64) (net.Conn, error) {
	conn, err := dialWithin(ctx, dialLimit, b.dial, b.ends.source)
	if err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, length), seed)
	err = within(dialLimit, "what the source is to send", func() error {
		_, err := conn.Write(head)
		return err
	})
	if err != nil {
		go conn.Close()
		return nil, err
	}
	return conn, nil
}

func runEndpointCloses(ctx context.Context, b *bench) (string, error) {
	return "", inParallel(20, 5, func(int) error { return receiveAll(ctx, b, 1<<20+1, 0) })
}

// runPausedClient reads nothing for longer than a server waits for a client that has closed. The shortest answers fit into the
// buffers between the endpoint and the client.
func runPausedClient(ctx context.Context, b *bench) (string, error) {
	const count = 20
	return "", inParallel(count, count, func(index int) error {
		return receiveAll(ctx, b, int64(index+1)*200_000, 12*time.Second)
	})
}

// receiveAll reads all bytes of an endpoint that then closes. The client pauses before it reads.
func receiveAll(ctx context.Context, b *bench, length int64, pause time.Duration) error {
	seed := rand.Uint64()
	conn, err := openSource(ctx, b, uint64(length), seed)
	if err != nil {
		return err
	}
	defer func() { go conn.Close() }()
	time.Sleep(pause)
	sum := sha256.New()
	var received int64
	err = within(20*time.Second, "an end after all bytes", func() (err error) {
		received, err = io.Copy(sum, conn)
		return err
	})
	if err != nil {
		return err
	}
	if received != length {
		return fault("truncated", "%d of %d bytes arrived before the end", received, length)
	}
	if [sha256.Size]byte(sum.Sum(nil)) != patternSum(seed, length) {
		return fault("corrupt", "what arrived is not what was sent")
	}
	return nil
}

func runUploads(ctx context.Context, b *bench) (string, error) {
	const length, count = 1 << 20, 60
	var truncated, reset atomic.Int64
	err := inParallel(count, 6, func(int) error {
		conn, name, err := openSink(ctx, b)
		if err != nil {
			return err
		}
		seed := rand.Uint64()
		if _, err := io.Copy(struct{ io.Writer }{conn}, pattern(seed, length)); err != nil {
			return fault("truncated", "the upload broke off: %w", err)
		}
		go conn.Close()
		report, err := b.ends.awaitSunk(name, 20*time.Second)
		if err != nil {
			return err
		}
		if report.err != nil {
			reset.Add(1)
		}
		if report.length != length || report.sum != patternSum(seed, length) {
			truncated.Add(1)
		}
		return nil
	})
	if err == nil && truncated.Load()+reset.Load() > 0 {
		err = fault("truncated", "%d of %d uploads arrived short, %d ended by a reset", truncated.Load(), count, reset.Load())
	}
	return fmt.Sprintf("%d of %d whole", count-truncated.Load(), count), err
}

// runServerFirst dials endpoints that send first. Payload must never arrive before the head of an HTTP CONNECT answer. Our
// server sends it 50 ms later, so a slower client may lose it (by gRPC) or read both at once (kube-apiserver refuses that); up
// to a tenth of the clients may. Without a barrier nearly all of them do.
func runServerFirst(ctx context.Context, b *bench) (string, error) {
	const count = 150
	var late atomic.Int64
	err := inParallel(count, 8, func(int) error {
		conn, err := dialWithin(ctx, dialLimit, b.dial, b.ends.greet)
		if err != nil {
			if b.cell.own() && strings.Contains(err.Error(), "buffered data") {
				late.Add(1)
				return nil
			}
			// Payload in the same read as the head, or before it, fails the dial.
			return fault("greeting", "%w", err)
		}
		defer func() { go conn.Close() }()
		got := make([]byte, len(greeting))
		err = within(5*time.Second, "the greeting", func() error {
			_, err := io.ReadFull(conn, got)
			return err
		})
		if err != nil && b.cell.own() {
			late.Add(1)
			return nil
		}
		if err != nil || string(got) != greeting {
			return fault("greeting", "it was %q: %w", got, err)
		}
		return nil
	})
	if err == nil && late.Load() > count/10 {
		err = fault("greeting", "%d of %d were lost or came together with the head", late.Load(), count)
	}
	return fmt.Sprintf("%d greetings, %d clients too slow for one", count, late.Load()), err
}

func runMany(ctx context.Context, b *bench) (string, error) {
	const count = 500
	conns := make([]net.Conn, count)
	defer func() {
		_ = inParallel(count, count, func(index int) error {
			if conns[index] != nil {
				return conns[index].Close()
			}
			return nil
		})
	}()
	began := time.Now()
	err := inParallel(count, count, func(index int) (err error) {
		conns[index], err = dialWithin(ctx, 28*time.Second, b.dial, b.ends.echo)
		return err
	})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	err = inParallel(count, count, func(index int) error {
		return within(20*time.Second, "echo", func() error { return echo(conns[index], 4096) })
	})
	return fmt.Sprintf("dialled in %.1f s", took.Seconds()), err
}

// inParallel runs count jobs, at most atATime at once, and returns the first failure with the number of all failures.
func inParallel(count, atATime int, job func(index int) error) error {
	var next, failures atomic.Int64
	var first error
	var once sync.Once
	var workers sync.WaitGroup
	for range min(atATime, count) {
		workers.Go(func() {
			for {
				index := int(next.Add(1)) - 1
				// Stop after ten failures: the peer is broken.
				if index >= count || failures.Load() > 10 {
					return
				}
				if err := job(index); err != nil {
					failures.Add(1)
					once.Do(func() { first = err })
				}
			}
		})
	}
	workers.Wait()
	if first != nil {
		return fmt.Errorf("%w (%d of %d failed)", first, failures.Load(), min(next.Load(), int64(count)))
	}
	return nil
}
