//! The text exposition format 0.0.4, as Go's client library writes it.
//!
//! prometheus-client writes OpenMetrics, which does not fit dashboards for the Go programs: forced `_total` on counters,
//! a full stop after every HELP, `le="1.0"`, and families in the order of registration. This module changes these.

use std::borrow::Cow;
use std::fmt::Write;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// Encodes the whole registry: families sorted by name, counters and gauges by their labels. Families without children are
/// omitted. A HELP must be one line.
pub(super) fn encode(registry: &Registry) -> String {
    let mut text = String::with_capacity(16 * 1024);
    if let Err(error) = encode_registry(&mut text, registry) {
        // Only a collector can fail, and ours skip unreadable values.
        tracing::error!(%error, "metrics cannot be encoded");
    }
    // Labels may contain this text, but no line ends: those are escaped.
    let families = text.strip_prefix("# HELP ").unwrap_or(&text);
    let mut families: Vec<&str> = families.split("\n# HELP ").collect();
    families.sort_unstable();
    let mut out = String::with_capacity(text.len());
    for family in families {
        write_family(&mut out, family);
    }
    out
}

/// Writes the lines of a family in Go's form. `None` if they are not the library's.
fn write_family(out: &mut String, family: &str) -> Option<()> {
    let mut lines = family.lines();
    let (name, help) = lines.next()?.split_once(' ')?;
    let (_, kind) = lines.next()?.rsplit_once(' ')?;
    // The library writes whole numbers of floats as `4.0`.
    let samples =
        lines.filter_map(|line| line.strip_prefix(name)).map(|line| line.strip_suffix(".0").unwrap_or(line));
    let mut samples: Vec<Cow<'_, str>> = samples
        .map(|sample| match kind {
            "counter" => sample.strip_prefix("_total").unwrap_or(sample).into(),
            "histogram" => with_bound(sample).map_or(sample.into(), Cow::from),
            _ => sample.into(),
        })
        .collect();
    if samples.is_empty() {
        return None;
    }
    if kind != "histogram" {
        samples.sort_unstable();
    }
    let help = help.strip_suffix('.').unwrap_or(help);
    // Writing to a String cannot fail.
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for sample in samples {
        let _ = writeln!(out, "{name}{sample}");
    }
    Some(())
}

/// A bucket's line with its bound as Go writes it; `None` for another line.
fn with_bound(sample: &str) -> Option<String> {
    let (before, bound) = sample.strip_prefix("_bucket")?.split_once("le=\"")?;
    let (bound, after) = bound.split_once('"')?;
    Some(format!("_bucket{before}le=\"{}\"{after}", number(bound.parse().ok()?)))
}

/// Formats a number as Go's `strconv.FormatFloat(f, 'g', -1, 64)`, which Prometheus clients in Go use: the shortest
/// decimal that parses to the same value; with an exponent of at least two digits below 1e-4 and from 1e6
/// on. (`%v` of Go uses an exponent from 1e21 on.)
fn number(value: f64) -> String {
    if value.is_infinite() {
        return "+Inf".to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::{Counter, Family, Gauge, Histogram, Lazy, Live, Plain};

    crate::label! {
        enum Reason in "reason" { NoAgent => "no_agent", Escaped => "a\"b\\c\nd", }
    }
    crate::label! {
        enum Code in "code" { Ok => "OK", }
    }

    /// Written by Go's client_golang 1.23 for the same names and values. The order of a histogram's lines is its own.
    const GOLDEN: &str = include_str!("../../testdata/golden.prom");

    /// A peer may choose a label's value.
    #[test]
    fn labels_may_contain_the_marks_of_a_family() {
        let mut registry = Registry::default();
        let outliers = Family::<Vec<(String, String)>, Gauge>::default();
        registry.register("outlier", "Outliers", outliers.clone());
        outliers.get_or_create(&vec![("id".to_owned(), "x# HELP y z\n# HELP a b".to_owned())]).set(1);
        let expected =
            "# HELP outlier Outliers\n# TYPE outlier gauge\noutlier{id=\"x# HELP y z\\n# HELP a b\"} 1\n";
        assert_eq!(encode(&registry), expected);
    }

    #[test]
    fn golden() {
        let mut registry = Registry::with_prefix("konnectivity_test");
        let failures = Family::<(Code, Reason), Counter>::default();
        registry.register("dial_failure_count", "Dials that failed", failures.clone());
        failures.get_or_create(&(Code::Ok, Reason::NoAgent)).inc_by(999_999);
        failures.get_or_create(&(Code::Ok, Reason::Escaped)).inc();
        let total = Counter::<u64>::default();
        registry.register("packets_total", "With a full stop", total.clone());
        total.inc_by(7);
        let durations = Histogram::new(&[1e-6, 1e-5, 1e-4, 0.005, 1.0, 14400.0, 1e6]);
        registry.register("dial_duration_seconds", "Time that dials took", durations.clone());
        durations.observe(Duration::from_micros(5));
        durations.observe(Duration::from_millis(1500));
        let gauge = Gauge::<i64>::default();
        registry.register("http_connections", "Open connections", gauge.clone());
        gauge.set(-3);

        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&encode(&registry)), sorted(GOLDEN));
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
        ];
        for (value, text) in table {
            assert_eq!(number(value), text);
        }
    }
}
