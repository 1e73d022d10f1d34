//! `--otlp-endpoint`: spans of dials on both programs. The collector is a stand-in: tonic's server for the OTLP trace service of
//! the crate opentelemetry-proto, which keeps what it gets.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::endpoints::{Endpoint, Refusing};
use e2e::exchange::works;
use e2e::metrics::{AGENT, SERVER};
use e2e::pair::{Pair, Setup};
use e2e::wait::{DEADLINE, until, within_limit};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

/// A span, and the service that sent it.
type Sent = (String, Span);

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Sent>>>);

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        for spans in request.into_inner().resource_spans {
            let attributes = spans.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = attribute(&attributes, "service.name").unwrap_or_default();
            let spans = spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().extend(spans.map(|span| (service.clone(), span)));
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves until the test's runtime ends; returns the flag that names it.
    async fn start(&self) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let flag = format!("--otlp-endpoint=http://{}", listener.local_addr()?);
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Ok(flag)
    }

    /// The spans, once there are `count`.
    async fn spans(&self, count: usize) -> Result<Vec<Sent>> {
        let enough = || async { Some(self.0.lock().clone()).filter(|spans| spans.len() >= count) };
        let found = until("spans", DEADLINE, enough).await;
        found.with_context(|| format!("{count} spans, got {:?}", self.0.lock()))
    }
}

async fn traced(flag: &str, server_args: &[&str], agent_args: &[&str]) -> Result<Pair> {
    let mut setup = Setup::grpc().server_arg(flag).agent_arg(flag);
    for arg in server_args {
        setup = setup.server_arg(*arg);
    }
    for arg in agent_args {
        setup = setup.agent_arg(*arg);
    }
    setup.start().await
}

/// The only span of this service and name.
fn only<'a>(spans: &'a [Sent], service: &str, name: &str) -> Result<&'a Span> {
    let found: Vec<_> = spans.iter().filter(|(of, span)| of == service && span.name == name).collect();
    ensure!(found.len() == 1, "{} spans {name} of {service}: {spans:?}", found.len());
    Ok(&found[0].1)
}

#[tokio::test]
async fn a_dial_is_one_trace_over_both_programs() -> Result<()> {
    let collector = Collector::default();
    let flag = collector.start().await?;
    // The agent records what the server records, whatever its own ratio.
    let pair = traced(&flag, &["--otlp-sample-ratio=1"], &["--otlp-sample-ratio=0"]).await?;
    let endpoint = Endpoint::echo().await?;
    let target = endpoint.target().replace("127.0.0.1", "localhost");
    works(pair.frontend(), &target).await?;
    let spans = collector.spans(6).await?;
    let (server, agent) = ("konnectivity-server", "konnectivity-agent");
    let dial = only(&spans, server, "dial")?;
    let [select, request] = [only(&spans, server, "select agent")?, only(&spans, server, "DIAL_REQ")?];
    let remote = only(&spans, agent, "dial endpoint")?;
    let [lookup, connect] = [only(&spans, agent, "lookup")?, only(&spans, agent, "connect")?];
    ensure!(
        dial.parent_span_id.is_empty() && dial.trace_id.len() == 16 && dial.span_id.len() == 8,
        "{dial:?}"
    );
    for (child, parent) in
        [(select, dial), (request, dial), (remote, request), (lookup, remote), (connect, remote)]
    {
        ensure!(child.trace_id == dial.trace_id && child.parent_span_id == parent.span_id, "{child:?}");
        ensure!(
            child.start_time_unix_nano <= child.end_time_unix_nano && child.status.is_none(),
            "{child:?}"
        );
    }
    for span in [dial, remote] {
        ensure!(attribute(&span.attributes, "server.address") == Some(target.clone()), "{span:?}");
    }
    pair.server().wait_metric("trace_spans_total", &[("result", "exported")], 3.0).await?;
    pair.agent().wait_metric("trace_spans_total", &[("result", "exported")], 3.0).await?;
    Ok(())
}

#[tokio::test]
async fn failed_dials_have_an_error_on_both_halves() -> Result<()> {
    let collector = Collector::default();
    let flag = collector.start().await?;
    let pair = traced(&flag, &["--otlp-sample-ratio=1"], &[]).await?;
    let refusing = Refusing::new()?;
    pair.frontend().dial_error(&refusing.target()).await?;
    let spans = collector.spans(5).await?;
    for (service, name) in [
        ("konnectivity-server", "dial"),
        ("konnectivity-server", "DIAL_REQ"),
        ("konnectivity-agent", "dial endpoint"),
    ] {
        let status = only(&spans, service, name)?.status.clone().context("a status")?;
        ensure!(status.code == 2 && status.message.contains("connection refused"), "{name}: {status:?}");
    }
    Ok(())
}

#[tokio::test]
async fn without_a_context_the_agents_own_ratio_counts() -> Result<()> {
    let collector = Collector::default();
    let flag = collector.start().await?;
    let endpoint = Endpoint::echo().await?;
    // The server says that it records nothing.
    let silent = traced(&flag, &["--otlp-sample-ratio=0"], &["--otlp-sample-ratio=1"]).await?;
    works(silent.frontend(), &endpoint.target()).await?;
    // This one says nothing.
    let alone = Setup::grpc().agent_arg(&flag).agent_arg("--otlp-sample-ratio=1").start().await?;
    works(alone.frontend(), &endpoint.target()).await?;
    let spans = collector.spans(2).await?;
    let dial = only(&spans, "konnectivity-agent", "dial endpoint")?;
    ensure!(dial.parent_span_id.is_empty(), "{dial:?}");
    for (scrape, prefix) in
        [(silent.server().metrics().await?, SERVER), (silent.agent().metrics().await?, AGENT)]
    {
        ensure!(
            scrape.sum(&format!("{prefix}trace_spans_total"), &[]).is_none(),
            "a span in {}",
            scrape.text
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_collector_that_is_absent_or_hangs_costs_a_counter() -> Result<()> {
    let absent = Refusing::new()?;
    let hanging = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Endpoint::echo().await?;
    for address in [absent.target(), hanging.local_addr()?.to_string()] {
        let flag = format!("--otlp-endpoint=http://{address}");
        let pair = traced(&flag, &["--otlp-sample-ratio=1"], &[]).await?;
        for _ in 0..20 {
            within_limit("a dial", Duration::from_secs(5), works(pair.frontend(), &endpoint.target()))
                .await??;
        }
        pair.server()
            .wait_metrics("lost spans", |scrape| {
                scrape.value(&format!("{SERVER}trace_spans_total"), &[("result", "lost")]) >= 60.0
            })
            .await?;
        pair.server().process.wait_said("trace spans are lost (--otlp-endpoint)").await?;
    }
    Ok(())
}
