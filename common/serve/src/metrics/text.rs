//! The text exposition format 0.0.4, byte for byte as Go's client library writes it.
//!
//! prometheus-client writes OpenMetrics, which does not fit dashboards for the Go programs: forced `_total` on counters,
//! a full stop after every HELP, `le="1.0"`, `# EOF`, and families in the order of registration. This module reads that
//! text and writes it in Go's form.

use std::fmt::Write;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// One family in the library's text.
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    samples: Vec<Sample<'a>>,
}

/// One line with a value.
struct Sample<'a> {
    /// `name="value"`, sorted by name, without `le`.
    labels: Vec<&'a str>,
    part: Part,
    value: f64,
}

/// Which line of its metric a sample is, in the order of the lines.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Part {
    /// A bucket of a histogram with its upper bound.
    Bucket(f64),
    Sum,
    Count,
    /// The only line of a counter or gauge.
    Value,
}

/// Encodes the whole registry: families sorted by name, children by label values, labels by name. Families without
/// children are omitted. A HELP must be one line.
pub(super) fn encode(registry: &Registry) -> String {
    let mut text = String::with_capacity(16 * 1024);
    if let Err(error) = encode_registry(&mut text, registry) {
        // Only a collector can fail, and ours skip unreadable values.
        tracing::error!(%error, "metrics cannot be encoded");
    }
    let mut families = parse(&text);
    families.retain(|family| !family.samples.is_empty());
    families.sort_by_key(|family| family.name);

    let mut out = String::with_capacity(text.len());
    for family in &mut families {
        family.samples.sort_by(|a, b| {
            let parts = || a.part.partial_cmp(&b.part).unwrap_or(std::cmp::Ordering::Equal);
            a.values().cmp(b.values()).then_with(parts)
        });
        write_family(&mut out, family);
    }
    out
}

fn parse(text: &str) -> Vec<Family<'_>> {
    let mut families = Vec::<Family<'_>>::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let help = help.strip_suffix('.').unwrap_or(help);
            families.push(Family { name, help, kind: "untyped", samples: Vec::new() });
            continue;
        }
        let Some(family) = families.last_mut() else { continue };
        if let Some((_, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            family.kind = if kind == "unknown" { "untyped" } else { kind };
        } else if let Some(sample) = line.strip_prefix(family.name).and_then(Sample::parse) {
            family.samples.push(sample);
        }
    }
    families
}

impl<'a> Sample<'a> {
    /// Parses a line after the family's name.
    fn parse(line: &'a str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (suffix, labels) = series.split_once('{').unwrap_or((series, ""));
        let mut labels = split_labels(labels.strip_suffix('}').unwrap_or_default());
        let part = match suffix {
            "_bucket" => {
                let le = labels.iter().position(|label| label.starts_with("le="))?;
                Part::Bucket(unquoted(labels.remove(le)).parse().ok()?)
            }
            "_sum" => Part::Sum,
            "_count" => Part::Count,
            _ => Part::Value,
        };
        labels.sort_unstable();
        Some(Self { labels, part, value: value.parse().ok()? })
    }

    fn values(&self) -> impl Iterator<Item = &'a str> {
        self.labels.iter().map(|label| unquoted(label))
    }
}

/// The value of `name="value"`, still escaped.
fn unquoted(label: &str) -> &str {
    label.split_once("=\"").and_then(|(_, value)| value.strip_suffix('"')).unwrap_or_default()
}

/// Splits `a="1",b="2"` at the commas outside of values.
fn split_labels(labels: &str) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    let ends_label = |c: char| {
        let ends = c == ',' && !quoted;
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    };
    labels.split(ends_label).filter(|label| !label.is_empty()).collect()
}

fn write_family(out: &mut String, family: &Family<'_>) {
    let name = family.name;
    line(out, format_args!("# HELP {name} {}", family.help.replace('\\', "\\\\")));
    line(out, format_args!("# TYPE {name} {}", family.kind));
    for sample in &family.samples {
        let value = number(sample.value);
        let labels = sample.labels.join(",");
        match sample.part {
            Part::Bucket(bound) => {
                let comma = if labels.is_empty() { "" } else { "," };
                let bound = number(bound);
                line(out, format_args!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {value}"));
            }
            Part::Sum => line(out, format_args!("{name}_sum{} {value}", braced(&labels))),
            Part::Count => line(out, format_args!("{name}_count{} {value}", braced(&labels))),
            Part::Value => line(out, format_args!("{name}{} {value}", braced(&labels))),
        }
    }
}

/// `{labels}`, or nothing.
fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
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
        registry.register("packets_total", "With a \\ inside.", total.clone());
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
