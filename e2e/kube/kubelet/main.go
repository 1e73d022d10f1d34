// Command kubelet is the node of the end-to-end tests: the programs that a kube-apiserver reaches through the tunnel.
//
// It serves a kubelet's paths (containerLogs, exec, attach, portForward, healthz, metrics, stats) with the streaming library
// that a kubelet and its container runtime use, a validating webhook, an aggregated API, and a pod's plain web server. There
// are no containers: exec runs commands on this machine, and logs are files in one folder. It never connects to a
// kube-apiserver, and it listens only on the addresses in its flags.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

// options are the command line.
type options struct {
	address, cert, key, clientCA, web, logs string
}

func main() {
	var opts options
	flag.StringVar(&opts.address, "address", "", "host:port of the kubelet's API, served with TLS")
	flag.StringVar(&opts.cert, "tls-cert-file", "", "the certificate of that API")
	flag.StringVar(&opts.key, "tls-private-key-file", "", "its key")
	flag.StringVar(&opts.clientCA, "client-ca-file", "", "who signs the clients of the kubelet's own paths")
	flag.StringVar(&opts.web, "web-address", "", "host:port of the pods' web server, without TLS; empty for none")
	flag.StringVar(&opts.logs, "log-dir", "", "folder of the containers' logs: NAMESPACE_POD_CONTAINER.log")
	flag.Parse()
	if err := run(opts); err != nil {
		log.Fatalf("kubelet: %v", err)
	}
}

func run(opts options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ended := make(chan error, 3)

	streams, err := serveStreams(ended)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	registerPlain(mux)
	registerExtensions(mux)
	(&logFiles{folder: opts.logs}).register(mux)
	streams.register(mux)

	config, err := tlsConfig(opts)
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", opts.address, config)
	if err != nil {
		return err
	}
	go func() { ended <- http.Serve(listener, authorized(mux)) }()
	if opts.web != "" {
		plain, err := net.Listen("tcp", opts.web)
		if err != nil {
			return err
		}
		go func() { ended <- http.Serve(plain, webServer()) }()
	}
	log.Printf("kubelet: serving on %s", opts.address)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// tlsConfig admits clients without a certificate, because webhooks and aggregated APIs are called by such clients.
func tlsConfig(opts options) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(opts.cert, opts.key)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(opts.clientCA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", opts.clientCA)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    pool,
		NextProtos:   []string{"h2", "http/1.1"},
	}, nil
}

// authorized requires a client certificate on every path for which a kubelet requires one.
func authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known := r.TLS != nil && len(r.TLS.VerifiedChains) > 0
		if !known && !isExtension(r.URL.Path) {
			http.Error(w, errors.New("a client certificate is required").Error(), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
