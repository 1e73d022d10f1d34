//! Sends batches of spans: OTLP over gRPC, as unary calls on one HTTP/2 connection.
//!
//! By hand over h2, because all of it is here: tonic's channel would add 0.5 MiB to each program.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::SpanResult;
use super::message::{ExportTraceServiceRequest, KeyValue, Resource, ResourceSpans, ScopeSpans, Span};
use crate::logs::Peer;
use crate::metrics::CountBy;

/// The most spans of one call.
const MAX_BATCH_SPANS: usize = 512;
/// How long the first span of a batch waits for others.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The time limit of a call.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Why a batch is lost.
type ExportError = Box<dyn std::error::Error + Send + Sync>;

/// Sends spans until every tracer has gone. A batch that the collector does not take is lost.
pub(super) async fn run(
    mut ended: mpsc::Receiver<Span>,
    collector: String,
    service: (&'static str, String),
    results: CountBy<SpanResult>,
) {
    let (mut connection, mut spans, mut failing) = (None, Vec::new(), false);
    while ended.recv_many(&mut spans, MAX_BATCH_SPANS).await > 0 {
        if spans.len() < MAX_BATCH_SPANS {
            sleep(BATCH_INTERVAL).await;
            while spans.len() < MAX_BATCH_SPANS
                && let Ok(span) = ended.try_recv()
            {
                spans.push(span);
            }
        }
        let count = spans.len() as u64;
        let message = batch(&service, std::mem::take(&mut spans));
        let sent = timeout(EXPORT_TIMEOUT, send(&mut connection, &collector, message)).await;
        let sent =
            sent.unwrap_or_else(|_| Err(format!("no answer within {} s", EXPORT_TIMEOUT.as_secs()).into()));
        let failed_before = std::mem::replace(&mut failing, sent.is_err());
        match sent {
            Ok(()) => {
                results.counter(SpanResult::Exported).inc_by(count);
                if failed_before {
                    tracing::info!(collector, "trace spans are exported again");
                }
            }
            Err(error) => {
                connection = None;
                results.counter(SpanResult::Lost).inc_by(count);
                if !failed_before {
                    tracing::warn!(err = %Peer(&error.to_string()), collector, "trace spans are lost (--otlp-endpoint)");
                }
            }
        }
    }
}

/// The gRPC message of a batch.
fn batch((name, id): &(&'static str, String), spans: Vec<Span>) -> Bytes {
    let attributes = vec![
        KeyValue::new("service.name", (*name).to_owned()),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        KeyValue::new("service.instance.id", id.clone()),
    ];
    let resource = Some(Resource { attributes });
    let resource_spans = vec![ResourceSpans { resource, scope_spans: vec![ScopeSpans { spans }] }];
    let request = ExportTraceServiceRequest { resource_spans };
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(u32::try_from(request.encoded_len()).unwrap_or(u32::MAX));
    message.extend_from_slice(&request.encode_to_vec());
    message.freeze()
}

/// One call, and another one on a new connection if a kept one fails: the collector may have closed it. A collector that took the
/// first one, and then broke, gets the batch twice, with the same ids.
async fn send(
    connection: &mut Option<SendRequest<Bytes>>,
    collector: &str,
    message: Bytes,
) -> Result<(), ExportError> {
    let was_kept = connection.is_some();
    match call(connection, collector, message.clone()).await {
        Err(_) if was_kept && connection.is_none() => call(connection, collector, message).await,
        ended => ended,
    }
}

/// One call, on a new connection if there is none. Keeps the connection if there is an answer.
async fn call(
    connection: &mut Option<SendRequest<Bytes>>,
    collector: &str,
    message: Bytes,
) -> Result<(), ExportError> {
    let client = match connection.take() {
        Some(client) => client,
        None => {
            let stream = TcpStream::connect(collector).await;
            let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
            let (client, driver) = h2::client::handshake(stream).await?;
            // Ends with the connection, and the connection with its last client.
            tokio::spawn(async move { drop(driver.await) });
            client
        }
    };
    let mut client = client.ready().await?;
    let request = Request::post(format!("http://{collector}{PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (answer, mut body) = client.send_request(request, false)?;
    body.send_data(message, true)?;
    let answer = answer.await?;
    let (head, mut body) = answer.into_parts();
    while let Some(data) = body.data().await {
        let len = data?.len();
        body.flow_control().release_capacity(len)?;
    }
    let trailers = body.trailers().await?;
    *connection = Some(client);
    let text = |headers: &HeaderMap, name| {
        headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let of = |name| trailers.as_ref().and_then(|trailers| text(trailers, name)).or(text(&head.headers, name));
    match of("grpc-status").as_deref() {
        Some("0") => Ok(()),
        Some(code) => {
            let message = of("grpc-message").unwrap_or_default();
            Err(format!("answer grpc-status {code} {message}").into())
        }
        None => Err(format!("answer {}, is it an OTLP port for gRPC?", head.status).into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_batch_survives_the_end_of_an_idle_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let collector = listener.local_addr().unwrap().to_string();
        // Serves one call on each connection, and closes it when told.
        let (close, mut closes) = mpsc::channel::<tokio::sync::oneshot::Sender<()>>(1);
        tokio::spawn(async move {
            loop {
                let mut connection = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
                let (_, mut answer) = connection.accept().await.unwrap().unwrap();
                let head = http::Response::builder().header("grpc-status", "0").body(()).unwrap();
                answer.send_response(head, true).unwrap();
                let closed = tokio::select! {
                    closed = closes.recv() => closed,
                    _ = connection.accept() => panic!("another call"),
                };
                drop(connection);
                closed.unwrap().send(()).unwrap();
            }
        });
        let mut connection = None;
        for _ in 0..3 {
            send(&mut connection, &collector, Bytes::from_static(b"batch")).await.unwrap();
            let (closed, is_closed) = tokio::sync::oneshot::channel();
            close.send(closed).await.unwrap();
            is_closed.await.unwrap();
        }
    }
}
