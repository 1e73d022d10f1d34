//! The entries of the flags for the connection log and traces, which both binaries have and Go's do not.

use super::Entry;
use flags::RecordOptions;

/// `options` returns this part of a binary's configuration.
pub fn record_entries<C: 'static>(
    base: &'static [&'static str],
    options: fn(&C) -> &RecordOptions,
) -> Vec<Entry<C>> {
    let flag = |flag: &'static str, shown: fn(&RecordOptions) -> String| {
        Entry::new(flag, base, move |config| shown(options(config)))
    };
    vec![
        flag("connection-log", |records| format!("{:?}", records.connection_log))
            .default("None")
            .accepts_but_go_rejects(&["--connection-log="], "None")
            .accepts_but_go_rejects(&["--connection-log=stderr"], "Some(\"stderr\")")
            .accepts_but_go_rejects(&["--connection-log", "/var/log/c"], "Some(\"/var/log/c\")"),
        flag("otlp-endpoint", |records| format!("{:?}", records.otlp_endpoint))
            .default("None")
            .accepts_but_go_rejects(&["--otlp-endpoint="], "None")
            .accepts_but_go_rejects(&["--otlp-endpoint=http://otel:4317"], "Some(\"otel:4317\")")
            .accepts_but_go_rejects(&["--otlp-endpoint=http://[::1]:4317/"], "Some(\"[::1]:4317\")")
            .refuses(
                &["--otlp-endpoint=https://otel:4317"],
                "--otlp-endpoint=\"https://otel:4317\": it must be http://HOST:PORT",
            )
            .refuses(
                &["--otlp-endpoint=otel:4317"],
                "--otlp-endpoint=\"otel:4317\": it must be http://HOST:PORT",
            )
            .refuses(
                &["--otlp-endpoint=http://otel"],
                "--otlp-endpoint=\"http://otel\": it must be http://HOST:PORT",
            )
            .refuses(
                &["--otlp-endpoint=http://otel:4317/v1"],
                "--otlp-endpoint=\"http://otel:4317/v1\": it must",
            ),
        flag("otlp-sample-ratio", |records| records.otlp_sample_ratio.to_string())
            .default("0.01")
            .accepts_but_go_rejects(&["--otlp-sample-ratio=1"], "1")
            .accepts_but_go_rejects(&["--otlp-sample-ratio=0"], "0")
            .refuses(&["--otlp-sample-ratio=2"], "--otlp-sample-ratio=2: it must be from 0 to 1")
            .refuses(
                &["--otlp-sample-ratio=nan"],
                "invalid argument \"nan\" for \"--otlp-sample-ratio\" flag",
            ),
    ]
}
