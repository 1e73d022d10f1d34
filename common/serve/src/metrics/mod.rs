//! Metrics as the Go programs expose them: exact names, Go's text format, families that appear at first use.
//!
//! This module has the metric types and the encoder; each binary's `metrics` module defines its metrics. There are no
//! globals: everything is built on a [`Registry`] that the caller passes.

mod api;
mod certificates;
mod histogram;
mod live;
mod losses;
mod process;
mod program;
mod streams;
mod text;

use std::sync::Arc;

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Metric;
pub use prometheus_client::registry::Registry;

pub use api::{ApiCalls, LeaseCall, Unanswered};
pub use certificates::Certificates;
pub use histogram::Histogram;
pub use live::{CountBy, Labels, Lazy, Live, LiveBy, LiveGuard};
pub use losses::Losses;
pub use process::ProcessCollector;
pub use program::{PayloadBytes, Tasks, count_panics, register_build_info};
pub use streams::{PacketMeter, Segment, StreamErrors, StreamPackets};

/// The `Content-Type` of [`Exposition::scrape`], as Go's promhttp sends it to a client without preferences.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Registers a metric, and returns a clone that shares its values.
pub fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// A metric without a start value of its own.
pub trait Plain: Metric + Clone + Default {
    /// Registers a new one.
    fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        registered(registry, name, help, Self::default())
    }
}

impl<M: Metric + Clone + Default> Plain for M {}

/// A finished registry, ready to be scraped. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Exposition(Arc<Registry>);

impl Exposition {
    /// Takes the registry after all registrations, and adds the `process_*` families.
    pub fn new(mut registry: Registry) -> Self {
        registry.register_collector(Box::new(ProcessCollector::default()));
        Self(Arc::new(registry))
    }

    /// The current values in text format 0.0.4, in Go's order.
    pub fn scrape(&self) -> String {
        text::encode(&self.0)
    }
}

/// Declares a struct of metrics in one table, and its `register(&mut Registry)`.
///
/// ```
/// use serve::metrics::{Counter, Live, Registry};
/// serve::families! {
///     /// The metrics of dials.
///     struct Dials {
///         pending: Live = "pending_dials", "Dials that wait for an answer";
///         /// Precedes the help in the documentation.
///         failed: Counter = "failed_dials_total", "Failed dials";
///     }
/// }
/// Dials::register(&mut Registry::default()).failed.inc();
/// ```
///
/// After the help, an expression may give the metric instead of its type's own `register`. A field without a name is made
/// by its type's `register(&mut Registry)`, or by the expression after `=>`, which may use the fields before it.
#[macro_export]
macro_rules! families {
    ($(#[$meta:meta])* $vis:vis struct $group:ident {
        $($(#[doc = $doc:literal])* $field_vis:vis $field:ident: $type:ty
            $(= $name:literal, $help:literal $(, $metric:expr)?)? $(=> |$registry:ident| $made:expr)?;)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        $vis struct $group {
            $($(#[doc = $doc])* $(#[doc = concat!("`", $name, "`: ", $help)])? $field_vis $field: $type,)+
        }

        impl $group {
            #[allow(unused_imports, unreachable_pub, reason = "not every group has a plain metric, or is public")]
            /// Registers the metrics.
            pub fn register(registry: &mut $crate::metrics::Registry) -> Self {
                use $crate::metrics::Plain as _;
                $(let $field: $type = $crate::families!(
                    @made registry, $type $(, $name, $help $(, $metric)?)? $(=> |$registry| $made)?
                );)+
                Self { $($field),+ }
            }
        }
    };
    (@made $into:ident, $type:ty) => { <$type>::register($into) };
    (@made $into:ident, $type:ty, $name:literal, $help:literal) => { <$type>::register($into, $name, $help) };
    (@made $into:ident, $type:ty, $name:literal, $help:literal, $metric:expr) => {
        $crate::metrics::registered($into, $name, $help, $metric)
    };
    (@made $into:ident, $type:ty => |$registry:ident| $made:expr) => {{
        let $registry = &mut *$into;
        $made
    }};
}

/// Declares a closed set of label values, usable as the label set of a [`Family`] or a part of it.
///
/// A tuple of two such types is a label set too, in any nesting: `(Code, (PacketType, Segment))`, by Go's rule in the order
/// of the labels' names. With `struct`, as in
/// `label!(struct Reason in "reason")`, the values are strings of another module's closed set. The short form,
/// `label!(Reason in "reason")`, is for a type that already has `fn name(&self) -> &'static str`.
#[macro_export]
macro_rules! label {
    ($(#[$meta:meta])* $vis:vis enum $name:ident in $label:literal {
        $($(#[$doc:meta])* $variant:ident => $value:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name { $($(#[$doc])* $variant,)+ }

        #[allow(dead_code, unreachable_pub, reason = "not every set needs all of these")]
        impl $name {
            /// All values.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The text of the label's value.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $value,)+ }
            }
        }

        $crate::label!($name in $label);
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident in $label:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis struct $name($vis &'static str);

        impl $name {
            /// The text of the label's value.
            $vis fn name(self) -> &'static str {
                self.0
            }
        }

        $crate::label!($name in $label);
    };
    ($name:ident in $label:literal) => {
        impl $crate::metrics::EncodeLabelSet for $name {
            fn encode(&self, encoder: &mut $crate::metrics::LabelSetEncoder<'_>) -> ::std::fmt::Result {
                $crate::metrics::EncodeLabel::encode(&($label, self.name()), encoder.encode_label())
            }
        }
    };
}

pub use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};
