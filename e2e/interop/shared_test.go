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

// runShared uses many connections over one HTTP/2 connection, with a Proxy stream for each, like the reusable tunnel of the
// client library after v0.36.
func runShared(ctx context.Context, b *bench) (string, error) {
	target, options, err := grpcTarget(b.rig)
	if err != nil {
		return "", err
	}
	conn, err := grpc.NewClient("passthrough:///"+target, options...)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	proxy := client.NewProxyServiceClient(conn)
	const count = 600
	err = inParallel(count, 100, func(int) error {
		return within(dialLimit, "a stream's life", func() error { return streamLife(ctx, proxy, b.ends.echo) })
	})
	return fmt.Sprintf("%d streams", count), err
}

// streamLife dials, echoes and closes on a separate stream.
func streamLife(ctx context.Context, proxy client.ProxyServiceClient, address string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := proxy.Proxy(ctx)
	if err != nil {
		return err
	}
	random := rand.Int64()
	dial := &client.DialRequest{Protocol: "tcp", Address: address, Random: random}
	err = stream.Send(&client.Packet{Type: client.PacketType_DIAL_REQ, Payload: &client.Packet_DialRequest{DialRequest: dial}})
	if err != nil {
		return err
	}
	packet, err := stream.Recv()
	if err != nil {
		return err
	}
	answer := packet.GetDialResponse()
	if answer == nil || answer.Error != "" || answer.Random != random || answer.ConnectID == 0 {
		return fault("text", "DIAL_REQ was answered by %v", packet)
	}
	if err := streamEcho(stream, answer.ConnectID); err != nil {
		return err
	}
	request := &client.CloseRequest{ConnectID: answer.ConnectID}
	err = stream.Send(&client.Packet{Type: client.PacketType_CLOSE_REQ, Payload: &client.Packet_CloseRequest{CloseRequest: request}})
	if err != nil {
		return err
	}
	packet, err = stream.Recv()
	if err != nil {
		return err
	}
	closed := packet.GetCloseResponse()
	if closed == nil || closed.ConnectID != answer.ConnectID || closed.Error != "" {
		return fault("text", "CLOSE_REQ was answered by %v", packet)
	}
	return nil
}

func streamEcho(stream client.ProxyService_ProxyClient, id int64) error {
	sent, _ := io.ReadAll(pattern(rand.Uint64(), 10_000))
	data := &client.Data{ConnectID: id, Data: sent}
	if err := stream.Send(&client.Packet{Type: client.PacketType_DATA, Payload: &client.Packet_Data{Data: data}}); err != nil {
		return err
	}
	var received []byte
	for len(received) < len(sent) {
		packet, err := stream.Recv()
		if err != nil {
			return err
		}
		data := packet.GetData()
		if data == nil || data.ConnectID != id || len(data.Data) == 0 {
			return fault("text", "DATA was answered by %v", packet)
		}
		received = append(received, data.Data...)
	}
	if !bytes.Equal(sent, received) {
		return fault("corrupt", "bytes came back changed")
	}
	return nil
}
