//! The text exposition format 0.0.4, byte for byte as Go's client library writes it.
//!
//! prometheus-client's own text encoder writes OpenMetrics, which does not fit dashboards for the Go programs: forced
//! `_total` on counters, `le="1.0"`, `# EOF`. Its protobuf model is Prometheus' data model, from which Go encodes too;
//! this module encodes that model. It removes two additions of the library: the `_total` at the end of every counter's
//! name, and the full stop at the end of every HELP.

use std::fmt::Write;

use prometheus_client::encoding::prometheus_protobuf::{self, prometheus_data_model as model};
use prometheus_client::registry::Registry;

/// Encodes the whole registry: families sorted by name, children by label values, labels by name. Families without
/// children are omitted.
pub(super) fn encode(registry: &Registry) -> String {
    let mut families = prometheus_protobuf::encode(registry).unwrap_or_else(|error| {
        // Only a collector can fail, and ours skip unreadable values.
        tracing::error!(%error, "metrics cannot be encoded");
        Vec::new()
    });
    families.retain(|family| !family.metric.is_empty());
    for family in &mut families {
        normalize(family);
    }
    families.sort_by(|a, b| a.name.cmp(&b.name));

    let mut out = String::with_capacity(16 * 1024);
    for family in &families {
        write_family(&mut out, family);
    }
    out
}

fn normalize(family: &mut model::MetricFamily) {
    if family.r#type() == model::MetricType::Counter
        && let Some(name) = family.name.strip_suffix("_total")
    {
        family.name.truncate(name.len());
    }
    if family.help.ends_with('.') {
        family.help.pop();
    }
    for metric in &mut family.metric {
        metric.label.sort_by(|a, b| a.name.cmp(&b.name));
    }
    family.metric.sort_by(|a, b| {
        let values =
            |metric: &model::Metric| metric.label.iter().map(|l| l.value.clone()).collect::<Vec<_>>();
        values(a).cmp(&values(b))
    });
}

fn write_family(out: &mut String, family: &model::MetricFamily) {
    let (name, kind) = (&family.name, kind(family.r#type()));
    line(out, format_args!("# HELP {name} {}", escape(&family.help, false)));
    line(out, format_args!("# TYPE {name} {kind}"));
    for metric in &family.metric {
        if let Some(histogram) = &metric.histogram {
            write_histogram(out, name, &metric.label, histogram);
        } else if let Some(value) = value(metric) {
            line(out, format_args!("{name}{} {}", labels(&metric.label, None), number(value)));
        }
    }
}

fn write_histogram(out: &mut String, name: &str, label: &[model::LabelPair], histogram: &model::Histogram) {
    for bucket in &histogram.bucket {
        let labels = labels(label, Some(bucket.upper_bound));
        let count = number(to_float(bucket.cumulative_count));
        line(out, format_args!("{name}_bucket{labels} {count}"));
    }
    let labels = labels(label, None);
    line(out, format_args!("{name}_sum{labels} {}", number(histogram.sample_sum)));
    line(out, format_args!("{name}_count{labels} {}", number(to_float(histogram.sample_count))));
}

fn value(metric: &model::Metric) -> Option<f64> {
    let counter = metric.counter.as_ref().map(|counter| counter.value);
    let gauge = metric.gauge.as_ref().map(|gauge| gauge.value);
    counter.or(gauge).or(metric.untyped.as_ref().map(|untyped| untyped.value))
}

fn kind(kind: model::MetricType) -> &'static str {
    match kind {
        model::MetricType::Counter => "counter",
        model::MetricType::Gauge => "gauge",
        model::MetricType::Histogram | model::MetricType::GaugeHistogram => "histogram",
        model::MetricType::Summary => "summary",
        model::MetricType::Untyped => "untyped",
    }
}

/// `{a="b",le="0.5"}`, or nothing. `le` goes last, as in Go.
fn labels(pairs: &[model::LabelPair], le: Option<f64>) -> String {
    let pairs = pairs.iter().map(|pair| format!("{}=\"{}\"", pair.name, escape(&pair.value, true)));
    let le = le.map(|bound| format!("le=\"{}\"", number(bound)));
    let all: Vec<String> = pairs.chain(le).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

/// Formats a number as Go's `strconv.FormatFloat(f, 'g', -1, 64)`, which Prometheus clients in Go use: the shortest
/// decimal that parses to the same value; with an exponent of at least two digits below 1e-4 and from 1e6
/// on.
fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..EXPONENT_FROM).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// The smallest power of ten that is written with an exponent. Source: `formatDigits` of Go's package strconv, where
/// the shortest format uses 6 here (`%v` uses 21).
const EXPONENT_FROM: i32 = 6;

fn escape(text: &str, quoted: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quoted { text.replace('"', "\\\"") } else { text }
}

/// All numbers of the format are floats, including counts: a million is 1e+06.
#[allow(clippy::cast_precision_loss, reason = "what Go does with counts above 2^53")]
fn to_float(count: u64) -> f64 {
    count as f64
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::{Counter, Family, Gauge, Histogram, Lazy, Live};

    crate::label! {
        enum Reason in "reason" { NoAgent => "no_agent", Escaped => "a\"b\\c\nd", }
    }
    crate::label! {
        enum Code in "code" { Ok => "OK", }
    }

    /// Written by Go's client_golang 1.23 for the same names and values.
    const GOLDEN: &str = include_str!("../../testdata/golden.prom");

    #[test]
    fn golden() {
        let mut registry = Registry::with_prefix("konnectivity_test");
        let failures = Family::<(Reason, Code), Counter>::default();
        registry.register("dial_failure_count", "Dials that failed", failures.clone());
        failures.get_or_create(&(Reason::NoAgent, Code::Ok)).inc_by(1_000_000);
        failures.get_or_create(&(Reason::Escaped, Code::Ok)).inc();
        let total = Counter::<u64>::default();
        registry.register("packets_total", "With a \\ and\na second line.", total.clone());
        total.inc_by(7);
        let durations = Histogram::new(&[1e-6, 1e-5, 1e-4, 0.005, 1.0, 14400.0, 1e6]);
        registry.register("dial_duration_seconds", "Time that dials took", durations.clone());
        durations.observe(Duration::from_micros(5));
        durations.observe(Duration::from_millis(1500));
        let gauge = Gauge::<i64>::default();
        registry.register("http_connections", "Open connections", gauge.clone());
        gauge.set(-3);

        assert_eq!(encode(&registry), GOLDEN);
    }

    #[test]
    fn unused_metrics_are_absent() {
        let mut registry = Registry::default();
        let lazy = Lazy::<Counter>::default();
        registry.register("lazy", "Lazy", lazy.clone());
        registry.register("family", "Family", Family::<Reason, Counter>::default());
        let live = Live::register(&mut registry, "live", "Live");
        assert_eq!(encode(&registry), "");

        lazy.inc();
        drop(live.enter());
        assert_eq!(
            encode(&registry),
            "# HELP lazy Lazy\n# TYPE lazy counter\nlazy 1\n# HELP live Live\n# TYPE live gauge\nlive 0\n"
        );
    }

    #[test]
    fn as_go_prints_them() {
        // Printed by `strconv.FormatFloat(f, 'g', -1, 64)` of go1.26.
        let table = [
            (1e-06, "1e-06"),
            (1e-05, "1e-05"),
            (0.0001, "0.0001"),
            (0.005, "0.005"),
            (12.5, "12.5"),
            (0.0, "0"),
            (1.0, "1"),
            (-3.0, "-3"),
            (86400.0, "86400"),
            (999_999.0, "999999"),
            (1e6, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (123_456_789.0, "1.23456789e+08"),
            (1.000_000_000_5e9, "1.0000000005e+09"),
            (1.5e20, "1.5e+20"),
            (1e21, "1e+21"),
            (1.7e308, "1.7e+308"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (value, text) in table {
            assert_eq!(number(value), text);
        }
    }
}
