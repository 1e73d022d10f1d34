//! The log as a whole: the tests read reported events back from files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tracing::{debug, error, info, trace, warn};

use super::*;

const SOON: Duration = Duration::from_secs(10);

fn to_file(path: &Path) -> Options {
    Options {
        logtostderr: false,
        stderrthreshold: Severity::Fatal,
        log_file: Some(path.to_owned()),
        skip_log_headers: true,
        ..Options::default()
    }
}

/// The file's contents after `report` ran with these options.
fn logged(options: &Options, report: impl FnOnce()) -> String {
    let (subscriber, logs) = Logs::build(options).expect("starts");
    tracing::subscriber::with_default(subscriber, report);
    logs.flush(SOON);
    fs::read_to_string(options.log_file.as_ref().expect("a file")).expect("is readable")
}

/// Lines without the variable parts: the time, the process id, the line number.
fn stable(text: &str) -> Vec<String> {
    let strip = |line: &str| {
        let (head, rest) = line.split_once("] ").expect("a prefix");
        let (head, caller) = head.rsplit_once(' ').expect("a caller");
        let (file, _) = caller.split_once(':').expect("a line number");
        // Letter, month and day, a space, 15 characters of time, the process id in at least 7.
        assert!(head.len() >= 1 + 4 + 1 + 15 + 1 + 7, "{head}");
        let time = &head[1..21];
        assert!(time.bytes().all(|b| b.is_ascii_digit() || b" :.".contains(&b)), "{time}");
        format!("{} {file} {rest}", &head[..1])
    };
    text.lines().map(strip).collect()
}

#[test]
fn lines_as_klog_writes_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = logged(&to_file(&dir.path().join("log")), || {
        info!(agent_id = "node 1", connection = 7, up = true, ratio = 0.5, "Agent connected");
        warn!(agentID = %"4711", peer = "quoted", after = ?Duration::from_millis(1500), port = %8091, "quoting");
        error!(error = %io::Error::other("broken"), "stream failed");
        debug!("connection ended");
        trace!("not at -v=4");
    });
    assert_eq!(
        stable(&text),
        [
            r#"I tests.rs "Agent connected" agent_id="node 1" connection=7 up=true ratio=0.5"#,
            r#"W tests.rs "quoting" agentID="4711" peer="quoted" after="1.5s" port=8091"#,
            r#"E tests.rs "stream failed" error="broken""#,
            r#"I tests.rs connection ended"#,
        ]
    );
}

#[test]
fn target_of_an_event_sets_its_verbosity() {
    for (verbosity, shown) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)] {
        let dir = tempfile::tempdir().expect("a folder");
        let options = Options { verbosity, ..to_file(&dir.path().join("log")) };
        let text = logged(&options, || {
            info!(target: "v0", "always");
            info!(target: "v2", "from -v=2");
            debug!(target: "v4", "from -v=4");
        });
        assert_eq!(text.lines().count(), shown, "-v={verbosity}: {text}");
    }
}

#[test]
fn lines_as_json() {
    let dir = tempfile::tempdir().expect("a folder");
    let options =
        Options { format: Format::Json, skip_log_headers: false, ..to_file(&dir.path().join("log")) };
    let text = logged(&options, || {
        error!(peer = "a\"b\nc", n = -3, half = 0.5, never = f64::NAN, "over {}", "two\nlines");
    });
    let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("is JSON");
    assert_eq!(text.lines().count(), 1);
    assert_eq!(line["level"], "error");
    assert_eq!(line["msg"], "over two\nlines");
    assert_eq!(line["peer"], "a\"b\nc");
    assert_eq!((line["n"].as_i64(), line["half"].as_f64()), (Some(-3), Some(0.5)));
    assert_eq!(line["never"], "NaN");
    assert!(line["caller"].as_str().is_some_and(|caller| caller.starts_with("tests.rs:")));
    assert!(line["ts"].as_str().is_some_and(|ts| ts.len() == 27 && ts.ends_with('Z')));
}

#[test]
fn the_last_line_has_the_format_of_the_log() {
    let text = line::Style::bare(Format::Json).fatal("no \"port\"");
    let last: serde_json::Value = serde_json::from_str(text.trim_end()).expect("is JSON");
    assert_eq!((&last["msg"], &last["level"]), (&"no \"port\"".into(), &"error".into()));
    assert_eq!(line::Style::bare(Format::Text).fatal("no\nport"), "no\\nport\n");
}

#[test]
fn a_line_cannot_be_forged() {
    let evil = "x\"\nE1121 00:00:00.000000       1 main.rs:1] \"owned\" a=\"b\r\x1b[31m\u{2028}\u{202e}";
    for format in [Format::Text, Format::Json] {
        let dir = tempfile::tempdir().expect("a folder");
        let options = Options { format, ..to_file(&dir.path().join("log")) };
        let text = logged(&options, || {
            info!(value = evil, display = %evil, debug = ?evil, peer = %Peer(evil), "message {evil}");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.trim_end_matches('\n').chars().all(|c| !c.is_control()), "{text}");
        if format == Format::Text {
            // Outside quotes there are only keys.
            let (_, rest) = text.trim_end().split_once("] ").expect("a prefix");
            let mut bare = String::new();
            let (mut inside, mut escaped) = (false, false);
            for c in rest.chars() {
                match c {
                    _ if escaped => escaped = false,
                    '\\' => escaped = true,
                    '"' => inside = !inside,
                    c if !inside => bare.push(c),
                    _ => {}
                }
            }
            assert_eq!(bare, " value= display= debug= peer=");
        }
    }
}

#[test]
fn long_lines_are_cut() {
    let long = "y".repeat(100_000);
    for format in [Format::Text, Format::Json] {
        let dir = tempfile::tempdir().expect("a folder");
        let options = Options { format, ..to_file(&dir.path().join("log")) };
        let text = logged(&options, || info!(long, "head"));
        assert!(text.len() < 10_000 && text.contains("cut"), "{} bytes", text.len());
    }
}

#[test]
fn verbosity_changes_while_the_process_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = Options { verbosity: 0, ..to_file(&dir.path().join("log")) };
    let (subscriber, logs) = Logs::build(&options).expect("starts");
    tracing::subscriber::with_default(subscriber, || {
        for level in [0, 5, 0, 2] {
            logs.level().set(level);
            trace!("packet");
            info!("stream");
        }
    });
    logs.flush(SOON);
    let text = fs::read_to_string(dir.path().join("log")).expect("is readable");
    let lines: Vec<_> = text.lines().filter_map(|line| line.split_once("] ")).map(|(_, text)| text).collect();
    assert_eq!(lines, ["packet", "stream", "stream"]);
}

#[test]
fn verbosity_is_klogs() {
    let report = || {
        warn!("W");
        info!("I");
        debug!("D");
        trace!("T");
        tracing::debug!(target: "h2::client", "LD");
        tracing::trace!(target: "h2::hpack", "LT");
        tracing::warn!(target: "h2::proto", "caused by a peer");
        tracing::warn!(target: "hyper", "LW");
    };
    for (verbosity, shown) in
        [(0, "W LW"), (1, "W I LW"), (2, "W I LW"), (3, "W I D LW"), (4, "W I D LW"), (5, "W I D T LW")]
            .into_iter()
            .chain([(8, "W I D T LD caused by a peer LW"), (10, "W I D T LD caused by a peer LW")])
    {
        let dir = tempfile::tempdir().expect("a folder");
        let options = Options { verbosity, skip_headers: true, ..to_file(&dir.path().join("log")) };
        let text = logged(&options, report).replace('"', "");
        assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), shown, "-v={verbosity}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let vmodule = vec![("te?ts".to_owned(), 5)];
    let options = Options { verbosity: 1, vmodule, skip_headers: true, ..to_file(&dir.path().join("log")) };
    assert!(logged(&options, report).lines().any(|line| line == "T"));
}

#[test]
fn a_file_is_begun_anew_at_its_size() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("log");
    fs::write(&path, "from before\n").expect("written");
    let options = Options { log_file_max_size: 1, skip_log_headers: false, ..to_file(&path) };
    let (subscriber, logs) = Logs::build(&options).expect("starts");
    tracing::subscriber::with_default(subscriber, || {
        info!("first");
        logs.flush(SOON);
        let text = fs::read_to_string(&path).expect("is readable");
        assert!(text.starts_with("from before\nLog file created at: "), "{text}");
        assert!(text.contains("\nLog line format: [IWEF]mmdd") && text.contains("first"), "{text}");
        let filler = "z".repeat(4000);
        for number in 0..400 {
            info!(number, filler, "line");
            logs.flush(SOON);
        }
    });
    let text = fs::read_to_string(&path).expect("is readable");
    assert!(text.len() < 1024 * 1024, "{} bytes", text.len());
    assert!(text.starts_with("Log file created at: ") && text.contains("number=399"));
    assert!(!text.contains("number=0 "));
    assert_eq!(logs.queue.lost.get(), 0);
}

#[test]
fn a_full_disk_stops_nothing_and_is_counted() {
    let options = to_file(Path::new("/dev/full"));
    let (subscriber, logs) = Logs::build(&options).expect("a full disk is no reason not to start");
    tracing::subscriber::with_default(subscriber, || {
        for number in 0..100 {
            info!(number, "lost");
        }
    });
    logs.flush(SOON);
    assert_eq!(logs.queue.lost.get(), 100);
    let mut registry = Registry::default();
    logs.register(registry.sub_registry_with_prefix("p"));
    let scrape = crate::metrics::Exposition::new(registry).scrape();
    assert!(scrape.contains("\np_log_lines_lost_total 100\n"), "{scrape}");
}

#[test]
fn a_folder_has_a_file_per_severity() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = Options { log_file: None, log_dir: Some(dir.path().to_owned()), ..to_file(Path::new("")) };
    let (subscriber, logs) = Logs::build(&options).expect("starts");
    tracing::subscriber::with_default(subscriber, || {
        info!("one");
        error!("two");
    });
    logs.flush(SOON);
    let mut lines = Vec::new();
    for entry in fs::read_dir(dir.path()).expect("is readable") {
        let path = entry.expect("is readable").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let tag = name.rsplit('.').next().expect("a tag").to_owned();
        if path.is_symlink() {
            lines.push((tag, fs::read_to_string(&path).expect("is readable").lines().count()));
        }
    }
    lines.sort();
    let expected = [("ERROR", 1), ("INFO", 2), ("WARNING", 1)].map(|(tag, n)| (tag.to_owned(), n));
    assert_eq!(lines, expected);
}

#[test]
fn an_impossible_file_is_named() {
    let options = to_file(Path::new("/nonexistent/folder/log"));
    let error = Logs::build(&options).expect_err("cannot be opened");
    assert!(error.to_string().starts_with("cannot open the log file /nonexistent/folder/log"), "{error}");
}

#[test]
fn a_cause_that_was_said_is_not_said_again() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot listen: {source}")]
    struct Outer {
        source: io::Error,
    }
    #[derive(Debug, thiserror::Error)]
    #[error("--agent-port")]
    struct Context(#[source] Outer);
    let error = Context(Outer { source: io::Error::other("address in use") });
    assert_eq!(chain(&error), "--agent-port: cannot listen: address in use");
}
