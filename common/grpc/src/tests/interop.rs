//! tonic as an independent peer, over loopback.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::uri::PathAndQuery;
use mux::Packet;
use proto::packet::Payload;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::{Body, BoxFuture, Service, StdError};
use tonic::server::{NamedService, StreamingService};
use tonic::transport::{Endpoint, Server};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::{data, dial, failure, next, packet, packets, serve};
use crate::{Code, ServerSettings, Wire, WireError};

fn payload(bytes: impl Into<Bytes>) -> proto::Packet {
    let data = proto::Data { connect_id: 1, error: String::new(), data: bytes.into() };
    proto::Packet { r#type: 4, payload: Some(Payload::Data(data)) }
}

#[tokio::test]
async fn tonics_client_and_our_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(5 << 20);
    let calling = tokio::spawn(async move {
        client.ready().await.unwrap();
        let request = tonic::Request::new(UnboundedReceiverStream::new(receiver));
        let path = PathAndQuery::from_static("/AgentService/Connect");
        client.streaming(request, path, ProstCodec::<proto::Packet, proto::Packet>::default()).await
    });
    let (socket, _) = listener.accept().await.unwrap();
    let mut served = serve(socket, ServerSettings::for_agents());
    let request = served.requests.recv().await.unwrap();
    assert_eq!(request.path, "/AgentService/Connect");
    let mut stream = request.accept(HeaderMap::new()).unwrap();
    let mut answers: Streaming<proto::Packet> = calling.await.unwrap().unwrap().into_inner();
    for length in [1, 1_000, 100_000, 4_000_000] {
        sender.send(payload(vec![1; length])).unwrap();
        assert_eq!(packet(&mut stream).await, data(vec![1; length]));
        stream.send(data(vec![2; length])).unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), payload(vec![2; length]));
    }
    stream.fail(&WireError::new(Code::FailedPrecondition, "genug, 100 %"));
    let status = answers.next().await.unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::FailedPrecondition, "genug, 100 %"));
}

#[tokio::test]
async fn tonics_client_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let mut client = tonic::client::Grpc::new(channel);
    let calling = tokio::spawn(async move {
        client.ready().await.unwrap();
        let request = tonic::Request::new(tokio_stream::empty());
        let path = PathAndQuery::from_static("/Nobody/Knows");
        client.streaming(request, path, ProstCodec::<proto::Packet, proto::Packet>::default()).await
    });
    let (socket, _) = listener.accept().await.unwrap();
    let mut served = serve(socket, ServerSettings::for_frontends());
    served.requests.recv().await.unwrap().refuse(Code::Unimplemented, "unknown method");
    let status = calling.await.unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::Unimplemented, "unknown method"));
}

/// A service that sends every packet back, and ends with the status that a DIAL_CLS names.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "AgentService";
}

impl<B> Service<http::Request<B>> for Echo
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(grpc.streaming(EchoBack, request).await)
        })
    }
}

struct EchoBack;

impl StreamingService<proto::Packet> for EchoBack {
    type Response = proto::Packet;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<proto::Packet, Status>> + Send>>;
    type Future = BoxFuture<tonic::Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: tonic::Request<Streaming<proto::Packet>>) -> Self::Future {
        Box::pin(async move {
            if request.metadata().contains_key("refuse-me") {
                return Err(Status::permission_denied("not you"));
            }
            let echo = request.into_inner().map(|packet| match packet? {
                proto::Packet { payload: Some(Payload::CloseDial(it)), .. } if it.random == 42 => {
                    Err(Status::aborted("as you wish"))
                }
                packet => Ok(packet),
            });
            Ok(tonic::Response::new(Box::pin(echo) as Self::ResponseStream))
        })
    }
}

async fn echo() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Server::builder().add_service(Echo).serve_with_incoming(TcpListenerStream::new(listener)));
    TcpStream::connect(address).await.unwrap()
}

#[tokio::test]
async fn our_client_and_tonics_server() {
    let mut client = dial(echo().await, HeaderMap::new()).await.unwrap();
    for _ in 0..20 {
        for sent in packets() {
            client.stream.send(sent.clone()).unwrap();
            assert_eq!(packet(&mut client.stream).await, sent);
        }
    }
    client.stream.finish();
    assert_eq!(next(&mut client.stream).await, None);
    drop(client.stream);
    client.connection.close(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn our_client_and_tonics_statuses() {
    let mut client = dial(echo().await, HeaderMap::new()).await.unwrap();
    client.stream.send(Packet::DialCls { random: mux::DialId(42) }).unwrap();
    assert_eq!(failure(&mut client.stream).await, WireError::new(Code::Aborted, "as you wish"));
    let mut metadata = HeaderMap::new();
    metadata.insert("refuse-me", http::HeaderValue::from_static("yes"));
    let refused = dial(echo().await, metadata).await.unwrap_err();
    assert_eq!(refused, WireError::new(Code::PermissionDenied, "not you"));
}
