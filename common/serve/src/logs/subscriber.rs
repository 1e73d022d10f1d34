//! The process's `tracing` subscriber: filters by call site, renders, queues.

use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata};

use super::Options;
use super::line::{self, Style};
use super::queue::{Line, Queue};
use super::verbosity::{Verbosity, VerbosityLevel, severity};

/// Logs events, ignores spans.
#[derive(Debug)]
pub struct Subscriber {
    verbosity: Verbosity,
    style: Style,
    queue: Arc<Queue>,
}

impl Subscriber {
    pub(super) fn new(options: &Options, level: VerbosityLevel, queue: Arc<Queue>) -> Self {
        let verbosity = Verbosity { level, modules: options.vmodule.clone() };
        Self { verbosity, style: Style::new(options), queue }
    }
}

impl tracing::Subscriber for Subscriber {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.verbosity.shows(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.verbosity.most())
    }

    fn event(&self, event: &Event<'_>) {
        let (severity, ..) = severity(*event.metadata().level());
        let text = self.style.render(event, line::now());
        self.queue.push(Line { severity, text });
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        // Never reached: no span is enabled.
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}
