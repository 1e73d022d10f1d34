//! Traces of dials, exported to an OTLP collector.
//!
//! The sampler is W3C's parent-based one: a span whose trace came from a peer is recorded if the peer records it, any other
//! by the sample ratio. Ended spans go into a bounded queue, and a task on the operators' thread sends them ([`export`]). A
//! span that finds no room, or that the collector does not take, is lost and counted. Nothing here waits.

mod export;
mod message;

use std::sync::Arc;

use flags::RecordOptions;
use mux::TraceContext;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::logs::{Peer, unix_now};
use crate::metrics::{CountBy, Registry};
use message::{KeyValue, Span, Status};

/// The most spans that wait for the collector.
const MAX_QUEUED_SPANS: usize = 4_096;

crate::label! {
    /// What became of a recorded span.
    enum SpanResult in "result" {
        /// The collector has taken it.
        Exported => "exported",
        /// There was no room, or the collector did not take it.
        Lost => "lost",
    }
}

/// Makes spans, or none. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Span>,
    ratio: f32,
    results: CountBy<SpanResult>,
}

/// The role of a span.
#[derive(Clone, Copy)]
enum Kind {
    /// Work inside the program.
    Internal = 1,
    /// It serves a request.
    Server = 2,
    /// It asks a peer.
    Client = 3,
}

impl Tracer {
    /// Starts the exporter on this runtime, and registers `trace_spans_total` under this prefix; without a collector nothing.
    /// `service` is the program's name, and its own id.
    pub fn start(
        options: &RecordOptions,
        service: (&'static str, String),
        registry: &mut Registry,
        prefix: &str,
        runtime: &Handle,
    ) -> Self {
        let Some(collector) = options.otlp_endpoint.clone() else { return Self::default() };
        let help = "Recorded spans of dials, by what became of them";
        let results = CountBy::register(registry.sub_registry_with_prefix(prefix), "trace_spans_total", help);
        let (queue, ended) = mpsc::channel(MAX_QUEUED_SPANS);
        let ratio = options.otlp_sample_ratio;
        runtime.spawn(export::run(ended, collector, service, results.clone()));
        Self(Some(Arc::new(Shared { queue, ratio, results })))
    }

    /// A span of a request to this program that begins now, in the trace of `parent`, or in a new one.
    pub fn span(&self, name: &'static str, parent: Option<TraceContext>) -> OpenSpan {
        let Some(tracer) = &self.0 else { return OpenSpan::default() };
        let own = parent.unwrap_or_else(|| TraceContext {
            trace: rand::random::<u128>().max(1),
            span: 0,
            sampled: rand::random::<f32>() < tracer.ratio,
        });
        OpenSpan::begin(tracer, name, Kind::Server, own, Instant::now())
    }
}

/// A span that has not ended. Dropping it ends it as canceled.
#[derive(Debug, Default)]
pub struct OpenSpan {
    context: Option<TraceContext>,
    /// The span and its tracer, if it is recorded.
    recorded: Option<Box<(Span, Arc<Shared>)>>,
}

impl OpenSpan {
    fn begin(tracer: &Arc<Shared>, name: &str, kind: Kind, parent: TraceContext, began: Instant) -> Self {
        let context = TraceContext { span: rand::random::<u64>().max(1), ..parent };
        let recorded = context.sampled.then(|| {
            let span = Span {
                trace_id: context.trace.to_be_bytes().into(),
                span_id: context.span.to_be_bytes().into(),
                parent_span_id: if parent.span == 0 { Vec::new() } else { parent.span.to_be_bytes().into() },
                name: name.to_owned(),
                kind: kind as i32,
                start: nanoseconds(began),
                ..Span::default()
            };
            Box::new((span, Arc::clone(tracer)))
        });
        Self { context: Some(context), recorded }
    }

    /// The context for a peer; `None` if there are no traces.
    pub fn context(&self) -> Option<TraceContext> {
        self.context
    }

    /// The id of the trace, if it is recorded.
    pub fn trace_id(&self) -> Option<String> {
        self.context.filter(|context| context.sampled).map(|context| format!("{:032x}", context.trace))
    }

    /// A span of a request to a peer, within this one, that begins now.
    pub fn child(&self, name: &'static str) -> OpenSpan {
        match (self.context, &self.recorded) {
            (Some(context), Some(recorded)) => {
                OpenSpan::begin(&recorded.1, name, Kind::Client, context, Instant::now())
            }
            // The peer must know that the trace is not recorded.
            (context, _) => OpenSpan { context, recorded: None },
        }
    }

    /// Records a span within this one that is over.
    pub fn stage(&self, name: &'static str, began: Instant, ended: Instant) {
        if let (Some(context), Some(recorded)) = (self.context, &self.recorded) {
            let mut stage = OpenSpan::begin(&recorded.1, name, Kind::Internal, context, began);
            stage.export(ended, None);
        }
    }

    /// Sets an attribute, which is cut at 256 bytes.
    pub fn set(&mut self, key: &str, value: &str) {
        if let Some(recorded) = &mut self.recorded {
            recorded.0.attributes.push(KeyValue::new(key, Peer(value).to_string()));
        }
    }

    /// Ends the span, well or with an error. Further ends have no effect.
    pub fn end(&mut self, outcome: Result<(), &dyn std::fmt::Display>) {
        if self.recorded.is_some() {
            let error = outcome.err().map(|error| Peer(&error.to_string()).to_string());
            self.export(Instant::now(), error);
        }
    }

    fn export(&mut self, ended: Instant, error: Option<String>) {
        let Some(recorded) = self.recorded.take() else { return };
        let (mut span, tracer) = *recorded;
        span.end = nanoseconds(ended);
        span.status = error.map(|message| Status { message, code: 2 });
        if tracer.queue.try_send(span).is_err() {
            tracer.results.count(SpanResult::Lost);
        }
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        self.end(Err(&"canceled"));
    }
}

/// A past moment in nanoseconds since 1970.
fn nanoseconds(moment: Instant) -> u64 {
    u64::try_from(unix_now().saturating_sub(moment.elapsed()).as_nanos()).unwrap_or(u64::MAX)
}
