//! The entries of the flags of both admin ports.

use super::Entry;

/// `profiling` and `status` return these parts of a binary's configuration, `warnings` its warnings for the start.
pub fn profiling_entries<C: 'static>(
    base: &'static [&'static str],
    profiling: fn(&C) -> bool,
    status: fn(&C) -> bool,
    warnings: fn(&C) -> &[String],
) -> Vec<Entry<C>> {
    vec![
        Entry::new("enable-profiling", base, move |config| profiling(config).to_string())
            .default("false")
            .takes(&["--enable-profiling"], "true")
            .takes(&["--enable-profiling=1"], "true"),
        Entry::new("enable-contention-profiling", base, move |config| warnings(config).join("; "))
            .default("")
            .takes(
                &["--enable-profiling", "--enable-contention-profiling=T"],
                "--enable-contention-profiling has no effect: profiles of lock contention belong to Go's runtime",
            )
            .takes(
                &["--enable-contention-profiling", "--enable-profiling"],
                "--enable-contention-profiling has no effect: profiles of lock contention belong to Go's runtime",
            )
            .refuses(
                &["--enable-contention-profiling"],
                "--enable-contention-profiling needs --enable-profiling: add it",
            ),
        Entry::new("status-on-any-address", base, move |config| status(config).to_string())
            .default("false")
            .accepts_but_go_rejects(&["--status-on-any-address"], "true"),
    ]
}
