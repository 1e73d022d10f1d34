package interop

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// The programs refuse ports below 1024 and above 49151, so they cannot use port 0. Ports are leased below the kernel's
// ephemeral range by lock files, in the folder that the Rust suite uses as well (e2e/src/ports.rs).
const (
	firstPort    = 10_000
	lastPort     = 31_999
	portAttempts = 2_000
)

// lease is a loopback port that no other test uses until the lease is released.
type lease struct {
	port int
	lock *os.File
}

func leasePort() (*lease, error) {
	folder := filepath.Join(os.TempDir(), "konnectivity-e2e-ports")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for range portAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		taken, err := tryPort(folder, port)
		if err != nil {
			return nil, err
		}
		if taken != nil {
			return taken, nil
		}
	}
	return nil, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

func tryPort(folder string, port int) (*lease, error) {
	path := filepath.Join(folder, fmt.Sprintf("%d.lock", port))
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil, lock.Close()
	}
	listener, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		return nil, lock.Close()
	}
	return &lease{port: port, lock: lock}, listener.Close()
}

// local is the leased port as an address of the loopback interface.
func (l *lease) local() string { return fmt.Sprintf("127.0.0.1:%d", l.port) }

func (l *lease) release() { _ = l.lock.Close() }

// leasePorts leases several ports, or none.
func leasePorts(count int) ([]*lease, error) {
	var leases []*lease
	for range count {
		one, err := leasePort()
		if err != nil {
			for _, taken := range leases {
				taken.release()
			}
			return nil, err
		}
		leases = append(leases, one)
	}
	return leases, nil
}
