package interop

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"

	"google.golang.org/grpc"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// runShared uses many connections over one HTTP/2 connection, with a Proxy stream for each, and checks every packet.
func runShared(ctx context.Context, b *bench) (string, error) {
	conn, proxy, err := sharedClient(b)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	const count = 600
	err = inParallel(count, 100, func(int) error {
		return within(dialLimit, "a stream's life", func() error { return streamLife(ctx, proxy, b.ends.echo) })
	})
	return fmt.Sprintf("%d streams", count), err
}

// sharedClient is a client with one HTTP/2 connection.
func sharedClient(b *bench, further ...grpc.DialOption) (*grpc.ClientConn, client.ProxyServiceClient, error) {
	target, options, err := grpcTarget(b.rig)
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+target, append(options, further...)...)
	if err != nil {
		return nil, nil, err
	}
	return conn, client.NewProxyServiceClient(conn), nil
}

// dialledStream is a Proxy stream with an established connection.
type dialledStream struct {
	client.ProxyService_ProxyClient
	id int64
}

// dialStream opens a stream, which lives as long as the context, and dials.
func dialStream(ctx context.Context, proxy client.ProxyServiceClient, address string) (*dialledStream, error) {
	stream, err := proxy.Proxy(ctx)
	if err != nil {
		return nil, err
	}
	random := rand.Int64()
	dial := &client.DialRequest{Protocol: "tcp", Address: address, Random: random}
	err = stream.Send(&client.Packet{Type: client.PacketType_DIAL_REQ, Payload: &client.Packet_DialRequest{DialRequest: dial}})
	if err != nil {
		return nil, err
	}
	packet, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	answer := packet.GetDialResponse()
	if answer == nil || answer.Error != "" || answer.Random != random || answer.ConnectID == 0 {
		return nil, fault("text", "DIAL_REQ was answered by %v", packet)
	}
	return &dialledStream{stream, answer.ConnectID}, nil
}

// streamLife dials, echoes and closes on a separate stream.
func streamLife(ctx context.Context, proxy client.ProxyServiceClient, address string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := dialStream(ctx, proxy, address)
	if err != nil {
		return err
	}
	if err := stream.echo(10_000); err != nil {
		return err
	}
	request := &client.CloseRequest{ConnectID: stream.id}
	err = stream.Send(&client.Packet{Type: client.PacketType_CLOSE_REQ, Payload: &client.Packet_CloseRequest{CloseRequest: request}})
	if err != nil {
		return err
	}
	packet, err := stream.Recv()
	if err != nil {
		return err
	}
	closed := packet.GetCloseResponse()
	if closed == nil || closed.ConnectID != stream.id || closed.Error != "" {
		return fault("text", "CLOSE_REQ was answered by %v", packet)
	}
	return nil
}

func (s *dialledStream) write(bytes []byte) error {
	data := &client.Data{ConnectID: s.id, Data: bytes}
	return s.Send(&client.Packet{Type: client.PacketType_DATA, Payload: &client.Packet_Data{Data: data}})
}

func (s *dialledStream) echo(length int64) error {
	sent, _ := io.ReadAll(pattern(rand.Uint64(), length))
	if err := s.write(sent); err != nil {
		return err
	}
	var received []byte
	for len(received) < len(sent) {
		packet, err := s.Recv()
		if err != nil {
			return err
		}
		data := packet.GetData()
		if data == nil || data.ConnectID != s.id || len(data.Data) == 0 {
			return fault("text", "DATA was answered by %v", packet)
		}
		received = append(received, data.Data...)
	}
	if !bytes.Equal(sent, received) {
		return fault("corrupt", "bytes came back changed")
	}
	return nil
}
