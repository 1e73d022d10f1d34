//! The entries of the log flags of both binaries.

use super::Entry;
use flags::LogOptions;

/// `options` and `warnings` return the log's part of a binary's configuration.
pub fn log_entries<C: 'static>(
    base: &'static [&'static str],
    options: fn(&C) -> &LogOptions,
    warnings: fn(&C) -> &[String],
) -> Vec<Entry<C>> {
    let flag = |flag: &'static str, shown: fn(&LogOptions) -> String| {
        Entry::new(flag, base, move |config| shown(options(config)))
    };
    let mut entries = levels(flag);
    entries.extend(places(flag));
    entries.extend(forms(flag));
    entries.push(
        Entry::new("log-backtrace-at", base, move |config| warnings(config).join("; "))
            .default("")
            .takes(
                &["--log-backtrace-at=server.go:12"],
                "--log-backtrace-at has no effect: it names lines of Go sources",
            )
            .refuses(
                &["--log-backtrace-at=server:12"],
                "invalid argument \"server:12\" for \"--log-backtrace-at\"",
            )
            .refuses(
                &["--log-backtrace-at=a.go:0"],
                "invalid argument \"a.go:0\" for \"--log-backtrace-at\" flag",
            ),
    );
    entries
}

fn levels<C>(flag: impl Fn(&'static str, fn(&LogOptions) -> String) -> Entry<C>) -> Vec<Entry<C>> {
    vec![
        flag("v", |log| log.verbosity.to_string())
            .default("4")
            .takes(&["-v=2"], "2")
            .takes(&["-v2"], "2")
            .takes(&["-v", "2"], "2")
            .takes(&["--v", "2"], "2")
            .takes(&["--v=-1"], "-1")
            .refuses(&["-v"], "flag needs an argument: 'v' in -v")
            .refuses(&["-v=x"], "invalid argument \"x\" for \"-v, --v\" flag: it must be a decimal number")
            .refuses(
                &["-v=0x4"],
                "invalid argument \"0x4\" for \"-v, --v\" flag: it must be a decimal number",
            ),
        flag("vmodule", |log| format!("{:?}", log.vmodule))
            .default("[]")
            .takes(&["--vmodule=server*=6,b=0"], "[(\"server*\", 6)]")
            .refuses(
                &["--vmodule=server"],
                "invalid argument \"server\" for \"--vmodule\" flag: it must be a comma",
            ),
        flag("alsologtostderrthreshold", |log| format!("{:?}", log.alsologtostderrthreshold))
            .default("Info")
            .takes(&["--alsologtostderrthreshold=1"], "Warning"),
        flag("stderrthreshold", |log| format!("{:?}", log.stderrthreshold))
            .default("Error")
            .takes(&["--stderrthreshold=info"], "Info")
            .takes(&["--stderrthreshold=-7"], "Info")
            .refuses(
                &["--stderrthreshold=x"],
                "invalid argument \"x\" for \"--stderrthreshold\" flag: it must be INFO",
            ),
        flag("legacy-stderr-threshold-behavior", |log| log.legacy_stderr_threshold_behavior.to_string())
            .default("true")
            .takes(&["--legacy-stderr-threshold-behavior=false"], "false"),
    ]
}

fn places<C>(flag: impl Fn(&'static str, fn(&LogOptions) -> String) -> Entry<C>) -> Vec<Entry<C>> {
    vec![
        flag("logtostderr", |log| log.logtostderr.to_string())
            .default("true")
            .takes(&["--logtostderr=false"], "false"),
        flag("alsologtostderr", |log| log.alsologtostderr.to_string())
            .default("false")
            .takes(&["--alsologtostderr", "--logtostderr=false"], "true"),
        flag("log-file", |log| format!("{:?}", log.log_file))
            .default("None")
            .takes(&["--log-file=/dev/null", "--logtostderr=false"], "Some(\"/dev/null\")")
            .refuses(&["--log_file=/dev/null"], "unknown flag: --log_file"),
        flag("log-file-max-size", |log| log.log_file_max_size.to_string())
            .default("1800")
            .takes(&["--log-file-max-size=0"], "0")
            .refuses(&["--log-file-max-size=-1"], "invalid argument \"-1\" for \"--log-file-max-size\" flag"),
        flag("log-dir", |log| format!("{:?}", log.log_dir))
            .default("None")
            .takes(&["--log-dir=/x"], "Some(\"/x\")"),
        flag("one-output", |log| log.one_output.to_string())
            .default("false")
            .takes(&["--one-output"], "true"),
    ]
}

fn forms<C>(flag: impl Fn(&'static str, fn(&LogOptions) -> String) -> Entry<C>) -> Vec<Entry<C>> {
    vec![
        flag("log-format", |log| format!("{:?}", log.format))
            .default("Text")
            .accepts_but_go_rejects(&["--log-format=json"], "Json")
            .refuses(&["--log-format=xml"], "--log-format=\"xml\": it must be text or json"),
        flag("skip-headers", |log| log.skip_headers.to_string())
            .default("false")
            .takes(&["--skip-headers=t"], "true"),
        flag("skip-log-headers", |log| log.skip_log_headers.to_string())
            .default("false")
            .takes(&["--skip-log-headers"], "true"),
        flag("add-dir-header", |log| log.add_dir_header.to_string())
            .default("false")
            .takes(&["--add-dir-header"], "true"),
    ]
}
