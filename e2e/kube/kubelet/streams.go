package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// streams serves exec, attach and port-forward in two parts, as on a real node: the container runtime's streaming server on a
// separate loopback port, and the kubelet's proxy in front of it, which also translates WebSocket to SPDY.
type streams struct {
	runtime streaming.Server
}

// serveStreams starts the container runtime's part.
func serveStreams(ended chan<- error) (*streams, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	config := streaming.DefaultConfig
	config.Addr = listener.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr, Path: "/cri/"}
	server, err := streaming.NewServer(config, newRuntime())
	if err != nil {
		return nil, err
	}
	go func() { ended <- http.Serve(listener, server) }()
	return &streams{runtime: server}, nil
}

func (s *streams) register(mux *http.ServeMux) {
	for _, path := range []string{"{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"} {
		mux.HandleFunc("/exec/"+path, s.exec)
		mux.HandleFunc("/attach/"+path, s.attach)
	}
	for _, path := range []string{"{namespace}/{pod}", "{namespace}/{pod}/{uid}"} {
		mux.HandleFunc("/portForward/"+path, s.portForward)
	}
}

func (s *streams) exec(w http.ResponseWriter, r *http.Request) {
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.runtime.GetExec(&runtimeapi.ExecRequest{
		ContainerId: containerID(r),
		Cmd:         r.URL.Query()["command"],
		Tty:         opts.TTY,
		Stdin:       opts.Stdin,
		Stdout:      opts.Stdout,
		Stderr:      opts.Stderr,
	})
	s.forward(w, r, answer.GetUrl(), err, opts)
}

func (s *streams) attach(w http.ResponseWriter, r *http.Request) {
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.runtime.GetAttach(&runtimeapi.AttachRequest{
		ContainerId: containerID(r),
		Tty:         opts.TTY,
		Stdin:       opts.Stdin,
		Stdout:      opts.Stdout,
		Stderr:      opts.Stderr,
	})
	s.forward(w, r, answer.GetUrl(), err, opts)
}

// containerID is unique among all containers, like a runtime's id.
func containerID(r *http.Request) string {
	return r.PathValue("namespace") + "/" + r.PathValue("pod") + "/" + r.PathValue("container")
}

func (s *streams) portForward(w http.ResponseWriter, r *http.Request) {
	tunnelled := wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	opts := &portforward.V4Options{}
	if !tunnelled {
		var err error
		if opts, err = portforward.NewV4Options(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	answer, err := s.runtime.GetPortForward(&runtimeapi.PortForwardRequest{
		PodSandboxId: r.PathValue("pod"),
		Port:         opts.Ports,
	})
	if err != nil {
		_ = streaming.WriteError(err, w)
		return
	}
	handler, err := upgrade(answer.GetUrl())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if tunnelled {
		count("websocket_portforward")
		handler = translator.NewTunnelingHandler(handler)
	}
	handler.ServeHTTP(w, r)
}

// forward passes an exec or attach to the container runtime's part.
func (s *streams) forward(w http.ResponseWriter, r *http.Request, to string, err error, opts *remotecommand.Options) {
	if err != nil {
		_ = streaming.WriteError(err, w)
		return
	}
	handler, err := upgrade(to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		count("websocket_remotecommand")
		target, err := url.Parse(to)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		handler = translator.NewStreamTranslatorHandler(target, nil, 0, translator.Options{
			Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY,
		})
	}
	handler.ServeHTTP(w, r)
}

func upgrade(to string) (http.Handler, error) {
	target, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	return proxy.NewUpgradeAwareHandler(target, nil, false, true, responder{}), nil
}

type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// PortForward connects to that port of the loopback interface and copies bytes and half-closes in each direction.
func (*containers) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
		sent <- err
	}()
	// The port's output continues to its end, even after the client has closed its direction.
	_, err = io.Copy(stream, conn)
	_ = stream.Close()
	if err != nil {
		return err
	}
	select {
	case err = <-sent:
	default:
	}
	return err
}
