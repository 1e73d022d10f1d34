package interop

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apiserver/pkg/server/egressselector"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// dialFunc opens a connection through the tunnel.
type dialFunc func(ctx context.Context, address string) (net.Conn, error)

// egressDialer dials as kube-apiserver does: by its egress selector, configured by file. The selector does not support gRPC
// over TCP; for that the underlying client library is used directly.
func egressDialer(r *rig) (dialFunc, error) {
	if r.cell.front == grpcTLS {
		return clientDialer(context.Background(), r), nil
	}
	path := filepath.Join(r.folder, "egress.yaml")
	if err := os.WriteFile(path, []byte(egressConfiguration(r)), 0o600); err != nil {
		return nil, err
	}
	configuration, err := egressselector.ReadEgressSelectorConfiguration(path)
	if err != nil {
		return nil, err
	}
	selector, err := egressselector.NewEgressSelector(configuration)
	if err != nil {
		return nil, err
	}
	dial, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }, nil
}

func egressConfiguration(r *rig) string {
	protocol := "GRPC"
	if !r.cell.front.grpc() {
		protocol = "HTTPConnect"
	}
	transport := fmt.Sprintf("uds: {udsName: %q}", r.socket())
	if r.cell.front.tls {
		transport = fmt.Sprintf("tcp: {url: %q, tlsConfig: {caBundle: %q, clientCert: %q, clientKey: %q}}",
			"https://"+r.frontAddress(), r.pki.frontCA, r.pki.frontClient.cert, r.pki.frontClient.key)
	}
	return fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: %s
    transport: {%s}
`, protocol, transport)
}

// clientDialer uses the client library with a context that also limits the connection to the server; for gRPC fronts only. The
// end of lifetime ends every connection without a packet, as if the client vanished.
func clientDialer(lifetime context.Context, r *rig) dialFunc {
	return func(ctx context.Context, address string) (net.Conn, error) {
		target, options, err := grpcTarget(r)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithBlock(), grpc.FailOnNonTempDialError(true))
		tunnel, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(ctx, lifetime, target, options...)
		if err != nil {
			return nil, err
		}
		return tunnel.DialContext(ctx, "tcp", address)
	}
}

// grpcTarget returns the target and options of a gRPC client. On the Unix socket its path is the target's name, which becomes
// the `:authority` of each request.
func grpcTarget(r *rig) (string, []grpc.DialOption, error) {
	if r.cell.front.tls {
		configuration, err := frontTLS(r)
		if err != nil {
			return "", nil, err
		}
		secure := grpc.WithTransportCredentials(credentials.NewTLS(configuration))
		return r.frontAddress(), []grpc.DialOption{secure}, nil
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.socket())
	}
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	return r.socket(), []grpc.DialOption{grpc.WithContextDialer(dial), plain}, nil
}

func frontTLS(r *rig) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(r.pki.frontClient.cert, r.pki.frontClient.key)
	if err != nil {
		return nil, err
	}
	bundle, err := os.ReadFile(r.pki.frontCA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "localhost"}, nil
}

// boundDialer observes its context in every phase. The egress selector does not: with HTTP CONNECT it waits for the answer
// without a limit, and with gRPC it tries to reach an absent server for 30 s.
func boundDialer(r *rig) dialFunc {
	if r.cell.front.grpc() {
		return clientDialer(context.Background(), r)
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := frontSocket(ctx, r)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		if err := connect(conn, address); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
}

// frontSocket is a plain connection to an HTTP CONNECT front.
func frontSocket(ctx context.Context, r *rig) (net.Conn, error) {
	if !r.cell.front.tls {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.socket())
	}
	configuration, err := frontTLS(r)
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{Config: configuration}).DialContext(ctx, "tcp", r.frontAddress())
}

func connect(conn net.Conn, address string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", address); err != nil {
		return err
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	if reader.Buffered() > 0 {
		return fault("glued", "%d bytes came in one read with the head", reader.Buffered())
	}
	return nil
}

var errLate = errors.New("no progress in time")

// within limits operations that have no other limit: the client library's connections do not support deadlines.
func within(limit time.Duration, what string, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fault("time", "%s: %w after %s", what, errLate, limit)
	}
}

// dialWithin dials with a separate time limit.
func dialWithin(ctx context.Context, limit time.Duration, dial dialFunc, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var conn net.Conn
	err := within(limit+2*time.Second, "dial "+address, func() (err error) {
		conn, err = dial(ctx, address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}
