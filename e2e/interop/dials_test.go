package interop

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// wantRefusal dials and expects a refusal: from the gRPC front one of the agent's texts, from the HTTP CONNECT front the
// status, because kube-apiserver sees nothing more.
func wantRefusal(ctx context.Context, b *bench, address string, limit time.Duration, text string, status int) (string, error) {
	began := time.Now()
	conn, err := dialWithin(ctx, limit, b.dial, address)
	took := time.Since(began)
	if err == nil {
		go conn.Close()
		return "", fault("text", "a dial to %s succeeded", address)
	}
	wanted := text
	if !b.cell.front.grpc() {
		wanted = fmt.Sprintf("code %d", status)
	}
	if took >= limit {
		return "", fault("time", "no answer in %s: %w", limit, err)
	}
	if !strings.Contains(err.Error(), wanted) {
		return "", fault("text", "%q does not say %q", err, wanted)
	}
	return fmt.Sprintf("%d ms", took.Milliseconds()), nil
}

func runRefused(ctx context.Context, b *bench) (string, error) {
	endpoint, err := newRefusing()
	if err != nil {
		return "", err
	}
	defer endpoint.close()
	return wantRefusal(ctx, b, endpoint.address, 5*time.Second, "connect: connection refused", 502)
}

func runUnknownHost(ctx context.Context, b *bench) (string, error) {
	return wantRefusal(ctx, b, "no-such-host.invalid:443", 10*time.Second, "no such host", 502)
}

func runDialTimeout(ctx context.Context, b *bench) (string, error) {
	endpoint, err := newSilent()
	if err != nil {
		return "", err
	}
	defer endpoint.close()
	return wantRefusal(ctx, b, endpoint.address, 12*time.Second, "i/o timeout", 504)
}

const (
	pendingDials    = "konnectivity_network_proxy_server_pending_backend_dials"
	agentPackets    = "konnectivity_network_proxy_agent_stream_packets_total"
	serverPackets   = "konnectivity_network_proxy_server_stream_packets_total"
	agentFailures   = "konnectivity_network_proxy_agent_server_connection_failure_count"
	connectionReset = "konnectivity_network_proxy_%s_connection_resets_total"
)

// abandon starts this many dials to an endpoint that does not answer, and gives them up after the agent has received them. A
// client that vanishes sends no DIAL_CLS.
func abandon(ctx context.Context, b *bench, address string, count int, vanish bool) error {
	before, err := b.askedDials()
	if err != nil {
		return err
	}
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	dial, bound := boundDialer(b.rig), dialing
	if vanish && b.cell.front.grpc() {
		dial, bound = clientDialer(dialing, b.rig), ctx
	}
	ended := make(chan error, count)
	for range count {
		go func() {
			conn, err := dial(bound, address)
			if err == nil {
				go conn.Close()
				err = fault("text", "a dial to a silent endpoint succeeded")
			}
			ended <- err
		}()
	}
	var early error
	err = until(ctx, "the dials at the agent", 5*time.Second, func() error {
		select {
		case early = <-ended:
			return nil
		default:
		}
		asked, err := b.askedDials()
		if err == nil && asked < before+float64(count) {
			err = fmt.Errorf("it was asked for %v of %d", asked-before, count)
		}
		return err
	})
	if err != nil {
		return fault("dials", "%w", err)
	}
	if early != nil {
		return early
	}
	cancel()
	return within(3*time.Second, "the end of canceled dials", func() error {
		for range count {
			if err := <-ended; kindOf(err) == "text" {
				return err
			}
		}
		return nil
	})
}

// askedDials counts the dials that the agent has received.
func (b *bench) askedDials() (float64, error) {
	return metric(b.agent().health, agentPackets, `segment="to_agent"`, `"DIAL_REQ"`)
}

func runDialCancelled(ctx context.Context, b *bench) (string, error) {
	endpoint, err := newSilent()
	if err != nil {
		return "", err
	}
	defer endpoint.close()
	// A Go program may forget the dials only when the agent gives up, after 5 s.
	limit := 3 * time.Second
	if !b.cell.own() {
		limit = 8 * time.Second
	}
	for _, vanish := range []bool{true, false} {
		if err := abandon(ctx, b, endpoint.address, 20, vanish); err != nil {
			return "", err
		}
		err := until(ctx, "no pending dial", limit, func() error {
			pending, err := metric(b.server.health, pendingDials)
			if err == nil && pending > 0 {
				err = fmt.Errorf("%v dials pend", pending)
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// runLateAnswer gives up on an endpoint that then answers. A connection that the agent has opened by then must be closed: the
// server tells a native agent by DIAL_CLS, and a Go agent by CLOSE_REQ when it reports its success.
func runLateAnswer(ctx context.Context, b *bench) (string, error) {
	endpoint, err := newSilent()
	if err != nil {
		return "", err
	}
	defer endpoint.close()
	if err := abandon(ctx, b, endpoint.address, 1, false); err != nil {
		return "", err
	}
	unexpected := endpoint.wake()
	select {
	case fd := <-unexpected:
		defer func() { _ = syscall.Close(fd) }()
		return "opened and closed", until(ctx, "the end of an abandoned connection", 5*time.Second, func() error {
			count, _, err := syscall.Recvfrom(fd, make([]byte, 1), syscall.MSG_DONTWAIT)
			if err == nil && count > 0 {
				return fmt.Errorf("it got a byte")
			}
			if err == syscall.EAGAIN {
				return fmt.Errorf("it is open")
			}
			return nil
		})
	case <-time.After(4 * time.Second):
		// The kernel retransmits a lost SYN after 1 s and 3 s.
		return "never opened", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
