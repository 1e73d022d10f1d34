//! pflag's syntax, case by case, on a small set of flags.

use std::ffi::OsString;

use proptest::prelude::*;

use crate::{Exit, FlagSet, GoDuration, List, LogFlags, LogFormat, LogOptions, Severity};

#[derive(Debug, Default)]
struct Fields {
    name: String,
    path: OsString,
    port: i64,
    size: u64,
    wait: GoDuration,
    list: List,
    on: bool,
    letter: bool,
    old: bool,
    log: LogFlags,
}

fn read(words: &[&str]) -> Result<(Fields, Vec<String>), Exit> {
    let mut fields = Fields { port: 8090, ..Fields::default() };
    let mut set = FlagSet::new("prog", "1.2.3", "does things.");
    set.heading("First");
    set.add("name", &mut fields.name, "A name.");
    set.add("path", &mut fields.path, "A path.");
    set.add("port", &mut fields.port, "A port.");
    set.add("size", &mut fields.size, "A size.");
    set.add("wait", &mut fields.wait, "A wait.").default_shown("long");
    set.heading("Second");
    set.add("list", &mut fields.list, "A list.");
    set.add("on", &mut fields.on, "A switch.");
    set.add("letter", &mut fields.letter, "A switch with a letter.").letter('b');
    set.add("old", &mut fields.old, "An old one.").deprecated("use --on");
    fields.log.register(&mut set);
    let warnings = set.read(["prog"].iter().chain(words).map(OsString::from))?;
    Ok((fields, warnings))
}

fn good(words: &[&str]) -> Fields {
    read(words).unwrap_or_else(|exit| panic!("{words:?}: {}", exit.stderr)).0
}

fn log(words: &[&str]) -> (LogOptions, Vec<String>) {
    good(words).log.options().unwrap()
}

#[test]
fn values_and_words() {
    assert_eq!(good(&[]).port, 8090);
    assert_eq!(good(&["--name=a"]).name, "a");
    assert_eq!(good(&["--name", "a"]).name, "a");
    assert_eq!(good(&["--name="]).name, "");
    assert_eq!(good(&["--name", ""]).name, "");
    assert_eq!(good(&["--name=a=b"]).name, "a=b");
    assert_eq!(good(&["--name", "--on"]).name, "--on", "a value may look like a flag");
    assert_eq!(good(&["--name", "--"]).name, "--");
    assert_eq!(good(&["--port", "-5"]).port, -5);
    assert_eq!(good(&["--port=1", "--port=2"]).port, 2, "the last wins");
    assert_eq!(good(&["--size=0x10"]).size, 16);
    assert_eq!(good(&["--wait", "1m30s"]).wait, GoDuration::from_seconds(90));
    assert_eq!(good(&["--list=a,b", "--list", "c"]).list.items, ["a", "b", "c"], "lists append");
    assert_eq!(good(&["--list=a", "--list="]).list.items, ["a"]);
}

#[test]
fn switches_never_take_the_next_word() {
    assert!(good(&["--on"]).on);
    assert!(good(&["--on", "false"]).on);
    assert!(!good(&["--on", "--on=false"]).on);
    assert!(good(&["--on=T"]).on);
    assert!(good(&["-b"]).letter);
    assert!(!good(&["-b=false"]).letter);
}

#[test]
fn letters() {
    for words in [&["-v=7"][..], &["-v7"], &["-v", "7"], &["--v", "7"], &["--v=7"], &["-bv7"], &["-bv", "7"]]
    {
        assert_eq!(log(words).0.verbosity, 7, "{words:?}");
    }
    assert_eq!(log(&["-v", "-1"]).0.verbosity, -1);
}

#[test]
fn positional_arguments_are_ignored() {
    let fields = good(&["word", "-", "", "--port=1", "more", "--", "--nonsense", "--port=2"]);
    assert_eq!(fields.port, 1);
}

#[test]
fn refusals() {
    let table = [
        (&["--nope"][..], "unknown flag: --nope"),
        (&["--nope=1"], "unknown flag: --nope"),
        (&["--log_file=x"], "unknown flag: --log_file"),
        (&["--Port=1"], "unknown flag: --Port"),
        (&["-x"], "unknown shorthand flag: 'x' in -x"),
        (&["-port=1"], "unknown shorthand flag: 'p' in -port=1"),
        (&["-bx"], "unknown shorthand flag: 'x' in -x"),
        (&["--port"], "flag needs an argument: --port"),
        (&["-v"], "flag needs an argument: 'v' in -v"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["---x"], "bad flag syntax: ---x"),
        (&["--nope", "--help"], "unknown flag: --nope"),
        (&["--port=x", "--port=1"], "invalid argument \"x\" for \"--port\" flag: it must be a whole number"),
        (&["--port="], "invalid argument \"\" for \"--port\" flag: it must be a whole number"),
        (&["--size=-1"], "invalid argument \"-1\" for \"--size\" flag: it must be a whole number"),
        (&["--on=yes"], "invalid argument \"yes\" for \"--on\" flag: it must be true or false"),
        (&["--on="], "invalid argument \"\" for \"--on\" flag: it must be true or false"),
        (&["--wait=5"], "invalid argument \"5\" for \"--wait\" flag: the unit is missing"),
        (&["--wait=1d"], "invalid argument \"1d\" for \"--wait\" flag: unknown unit \"d\""),
        (&["--list=a\"b"], "invalid argument \"a\\\"b\" for \"--list\" flag: a quotation mark"),
        (&["-v="], "invalid argument \"=\" for \"-v, --v\" flag: it must be a decimal number"),
        (&["-v=0x4"], "invalid argument \"0x4\" for \"-v, --v\" flag: it must be a decimal number"),
        (&["--vmodule=a"], "invalid argument \"a\" for \"--vmodule\" flag: it must be a comma-separated"),
        (
            &["--vmodule=a=-1"],
            "invalid argument \"a=-1\" for \"--vmodule\" flag: a level must not be below 0",
        ),
        (
            &["--stderrthreshold=LOUD"],
            "invalid argument \"LOUD\" for \"--stderrthreshold\" flag: it must be INFO",
        ),
        (
            &["--log-backtrace-at=a:1"],
            "invalid argument \"a:1\" for \"--log-backtrace-at\" flag: it must be FILE",
        ),
    ];
    for (words, line) in table {
        let exit = read(words).expect_err(&format!("{words:?}"));
        assert!(exit.stderr.starts_with(line), "{words:?}: {}", exit.stderr);
        assert_eq!((exit.code, exit.stderr.lines().count()), (1, 1), "{words:?}");
    }
}

#[test]
fn help_and_version() {
    for words in [&["-h"][..], &["--help"], &["--port=1", "--help", "--on"], &["-bh"]] {
        let exit = read(words).expect_err("help");
        assert_eq!((exit.code, exit.stderr.as_str()), (0, ""));
        for piece in [
            "prog: does things.",
            "First:\n  --name TEXT\n        A name.\n",
            "--port INT  (default 8090)",
            "--wait DURATION  (default long)",
            "-v, --v LEVEL  (default 4)",
            "Deprecated: use --on.",
            "Accepted without effect: it names lines of Go sources.",
        ] {
            assert!(exit.stdout.contains(piece), "{piece:?} is not in\n{}", exit.stdout);
        }
        assert!(exit.stdout.lines().all(|line| line.chars().count() <= 100));
    }
    assert_eq!(read(&["--version"]).expect_err("version").stdout, "prog 1.2.3\n");
    assert!(read(&["--help=false"]).is_ok());
}

#[test]
fn the_log() {
    let (options, warnings) = log(&[]);
    assert_eq!((options.verbosity, options.log_file_max_size), (4, 1800));
    assert!(options.logtostderr && options.legacy_stderr_threshold_behavior && warnings.is_empty());
    assert_eq!((options.stderrthreshold, options.format), (Severity::Error, LogFormat::Text));
    let (options, warnings) = log(&["--logtostderr=false", "--log-file=/x", "--log-file-max-size=0"]);
    assert!(!options.logtostderr && warnings.is_empty());
    assert_eq!((options.log_file.as_deref(), options.log_file_max_size), (Some("/x".as_ref()), 0));
    assert_eq!(log(&["--vmodule=a*=2,,b=0,c=9"]).0.vmodule, [("a*".to_owned(), 2), ("c".to_owned(), 9)]);
    for (text, severity) in [("info", Severity::Info), ("1", Severity::Warning), ("99", Severity::Fatal)] {
        assert_eq!(log(&["--stderrthreshold", text]).0.stderrthreshold, severity);
    }
    assert_eq!(log(&["--log-format=json"]).0.format, LogFormat::Json);
    assert!(good(&["--log-format=xml"]).log.options().is_err());
}

#[test]
fn ineffective_flags_are_named() {
    assert_eq!(log(&["--log-file=/x"]).1, ["--log-file has no effect without --logtostderr=false"]);
    assert_eq!(read(&["--old"]).unwrap().1, ["--old is deprecated: use --on"]);
    let warnings = read(&["--log-backtrace-at=a.go:7"]).unwrap().1;
    assert_eq!(warnings, ["--log-backtrace-at has no effect: it names lines of Go sources"]);
}

proptest! {
    #[test]
    fn no_command_line_panics(
        words in prop::collection::vec("-{0,3}(v|b|h|port|wait|list|on|size|vmodule|x)?=?\\PC{0,8}", 0..6)
    ) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if let Err(exit) = read(&words) {
            prop_assert_eq!(exit.stderr.lines().count(), usize::from(exit.code));
        }
    }
}
