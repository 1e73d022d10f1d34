package interop

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"
)

// greeting is the first payload of a server-first endpoint.
const greeting = "SSH-2.0-interop\r\n"

// endpoints are the agents' targets: one listener for each behavior.
type endpoints struct {
	// echo returns all bytes.
	echo string
	// greet sends first, and then reads to the end.
	greet string
	// source reads a length (8 bytes) and a seed (8 bytes), sends that many bytes, and closes.
	source string
	// sink reads a name (8 bytes), answers with one byte, reads to the end, and reports the length and the checksum.
	sink string
	// mute never reads and never sends.
	mute string

	lock  sync.Mutex
	sinks map[uint64]chan sunk
}

// sunk is the sink's report on one connection.
type sunk struct {
	length int64
	sum    [sha256.Size]byte
	err    error
}

func startEndpoints() (*endpoints, error) {
	e := &endpoints{sinks: make(map[uint64]chan sunk)}
	for _, one := range []struct {
		address *string
		serve   func(net.Conn)
	}{
		{&e.echo, func(c net.Conn) { _, _ = io.Copy(c, c) }},
		{&e.greet, func(c net.Conn) {
			_, _ = io.WriteString(c, greeting)
			_, _ = io.Copy(io.Discard, c)
		}},
		{&e.source, serveSource},
		{&e.sink, e.serveSink},
		{&e.mute, func(net.Conn) { time.Sleep(time.Hour) }},
	} {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*one.address = listener.Addr().String()
		go accept(listener, one.serve)
	}
	return e, nil
}

func accept(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			serve(conn)
		}()
	}
}

func serveSource(conn net.Conn) {
	var head [16]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return
	}
	length, seed := binary.BigEndian.Uint64(head[:8]), binary.BigEndian.Uint64(head[8:])
	_, _ = io.Copy(conn, pattern(seed, int64(length)))
}

func (e *endpoints) serveSink(conn net.Conn) {
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return
	}
	if _, err := conn.Write(head[:1]); err != nil {
		return
	}
	sum := sha256.New()
	length, err := io.Copy(sum, conn)
	report := sunk{length: length, err: err}
	sum.Sum(report.sum[:0])
	e.sunk(binary.BigEndian.Uint64(head[:])) <- report
}

// sunk returns the channel for the sink's report on the connection with that name.
func (e *endpoints) sunk(name uint64) chan sunk {
	e.lock.Lock()
	defer e.lock.Unlock()
	report, found := e.sinks[name]
	if !found {
		report = make(chan sunk, 1)
		e.sinks[name] = report
	}
	return report
}

// awaitSunk returns the sink's report, or an error after the limit.
func (e *endpoints) awaitSunk(name uint64, limit time.Duration) (sunk, error) {
	select {
	case report := <-e.sunk(name):
		return report, nil
	case <-time.After(limit):
		return sunk{}, fault("time", "the endpoint heard of no end within %s", limit)
	}
}

// pattern is a pseudo-random stream of bytes that is reproducible from its seed.
func pattern(seed uint64, length int64) io.Reader {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	return io.LimitReader(rand.NewChaCha8(key), length)
}

// patternSum is the checksum of a pattern.
func patternSum(seed uint64, length int64) [sha256.Size]byte {
	sum := sha256.New()
	_, _ = io.Copy(sum, pattern(seed, length))
	return [sha256.Size]byte(sum.Sum(nil))
}

// refusing is a port that is bound but not listening.
type refusing struct {
	address string
	fd      int
}

// silent is a listener with a full queue: the kernel drops further SYNs, so a dial gets no answer.
type silent struct {
	refusing
	queued []net.Conn
}

func newRefusing() (*refusing, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, err
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, err
	}
	port := name.(*syscall.SockaddrInet4).Port
	return &refusing{fmt.Sprintf("127.0.0.1:%d", port), fd}, nil
}

func newSilent() (*silent, error) {
	bound, err := newRefusing()
	if err != nil {
		return nil, err
	}
	if err := syscall.Listen(bound.fd, 0); err != nil {
		return nil, err
	}
	s := &silent{refusing: *bound}
	for range 16 {
		conn, err := net.DialTimeout("tcp4", s.address, 150*time.Millisecond)
		if err != nil {
			return s, nil
		}
		s.queued = append(s.queued, conn)
	}
	s.close()
	return nil, fmt.Errorf("a queue of zero took 16 connections")
}

// wake accepts the queued connections and all later ones.
func (s *silent) wake() (unexpected <-chan int) {
	known := make(map[int]bool)
	for _, conn := range s.queued {
		known[conn.LocalAddr().(*net.TCPAddr).Port] = true
	}
	found := make(chan int, 64)
	go func() {
		for {
			fd, from, err := syscall.Accept(s.fd)
			if err != nil {
				return
			}
			if !known[from.(*syscall.SockaddrInet4).Port] {
				found <- fd
			}
		}
	}()
	return found
}

func (r *refusing) close() { _ = syscall.Close(r.fd) }

func (s *silent) close() {
	for _, conn := range s.queued {
		_ = conn.Close()
	}
	// Wakes a running accept, which close alone does not.
	_ = syscall.Shutdown(s.fd, syscall.SHUT_RDWR)
	s.refusing.close()
}
