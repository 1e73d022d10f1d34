//! pflag's syntax, case by case, on a small set of flags.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use crate::{Exit, FlagError, FlagSet, GoDuration, LogFormat, LogOptions, ProfilingFlags, Severity};

crate::flags! {
    #[derive(Debug)]
    struct Fields {
        "First" {
            /// A name.
            name: String = "",
            /// A path.
            path: PathBuf = "",
            /// A port.
            port: i64 = "8090",
            /// A size.
            size: u64 = "0",
            /// A wait.
            wait: GoDuration = "0s" [default_shown = "long"],
        }
        "Second" {
            /// A list.
            list: Vec<String> = "",
            /// A switch.
            on: bool = "false",
            /// A switch with a letter.
            letter: bool = "false" [letter = 'b'],
            /// A flag with
            /// two names.
            renamed("new-name"): i64 = "0" [old_name = "old-name"] => not_seven,
        }
    }
}

fn not_seven(flag: &'static str, number: i64) -> Result<i64, FlagError> {
    if number == 7 { Err(FlagError::value(flag, number, "it must not be 7")) } else { Ok(number) }
}

fn read(words: &[&str]) -> Result<(Fields, LogOptions, Vec<String>), Exit> {
    let set = FlagSet::new("prog", "1.2.3", "does things.").group::<Fields>().group::<LogOptions>();
    let given = set.read(["prog"].iter().chain(words).map(OsString::from))?;
    Ok((given.group()?, given.group()?, given.warnings))
}

fn good(words: &[&str]) -> Fields {
    read(words).unwrap_or_else(|exit| panic!("{words:?}: {}", exit.stderr)).0
}

fn log(words: &[&str]) -> (LogOptions, Vec<String>) {
    let (_, options, _) = read(words).unwrap_or_else(|exit| panic!("{words:?}: {}", exit.stderr));
    let warnings = options.warnings();
    (options, warnings)
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
    assert_eq!(good(&["--wait", "1m30s"]).wait, Duration::from_secs(90).into());
    assert_eq!(good(&["--list=a,b", "--list", "c"]).list, ["a", "b", "c"], "lists append");
    assert_eq!(good(&["--list=a", "--list="]).list, ["a"]);
}

#[test]
fn changed_flags_differ_from_their_defaults() {
    let set = FlagSet::new("prog", "1", "does.").group::<Fields>().group::<LogOptions>();
    let words = [
        "prog",
        "--port=8090",
        "--name=a",
        "--list=x",
        "--list=y",
        "--wait=60s",
        "--v=4",
        "--log-format=json",
    ];
    let changed = set.read(words.iter().map(OsString::from)).unwrap().changed;
    let changed: Vec<String> = changed.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(changed, ["name=a", "wait=1m0s", "list=x,y", "log-format=json"]);
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
fn old_names() {
    assert_eq!(good(&["--old-name=1", "--new-name=2"]).renamed, 2, "the last wins by either name");
    assert_eq!(good(&["--new-name=2", "--old-name=1"]).renamed, 1);
    let warnings = read(&["--new-name=2", "--old-name=1"]).unwrap().2;
    assert_eq!(warnings, ["--old-name is deprecated: use --new-name"]);
    assert_eq!(read(&["--new-name=2"]).unwrap().2, [""; 0]);
}

#[test]
fn positional_arguments_are_ignored_with_a_warning() {
    let words =
        ["prog", "word", "-", "", "--port=1", "more", "--on", "false", "x", "--", "--nonsense", "--port=2"];
    let set = FlagSet::new("prog", "1.2.3", "does things.").group::<Fields>();
    let given = set.read(words.iter().map(OsString::from)).unwrap();
    assert_eq!(given.group::<Fields>().unwrap().port, 1);
    let warnings: Vec<_> = given.ignored().collect();
    assert_eq!(warnings.len(), 8, "{warnings:?}");
    assert_eq!(warnings[0], "\"word\" is ignored: it is neither a flag nor the value of one");
    assert_eq!(warnings[4], "\"false\" after --on is ignored: did you mean --on=false?");
    assert_eq!(warnings[7], "\"--port=2\" is ignored: it is neither a flag nor the value of one");
}

#[test]
fn refusals() {
    let table = [
        (&["--nope"][..], "unknown flag: --nope"),
        (&["--nope=1"], "unknown flag: --nope"),
        (&["--log_file=x"], "unknown flag: --log_file (did you mean --log-file?)"),
        (&["--prot=1"], "unknown flag: --prot (did you mean --port?)"),
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
        (&["--size=-1"], "invalid argument \"-1\" for \"--size\" flag: the number is out of range"),
        (&["--on=yes"], "invalid argument \"yes\" for \"--on\" flag: it must be true or false"),
        (&["--on="], "invalid argument \"\" for \"--on\" flag: it must be true or false"),
        (&["--wait=5"], "invalid argument \"5\" for \"--wait\" flag: the unit is missing"),
        (&["--wait=1d"], "invalid argument \"1d\" for \"--wait\" flag: unknown unit \"d\""),
        (&["--old-name=x"], "invalid argument \"x\" for \"--old-name\" flag: it must be a whole number"),
        (&["--new-name=x", "--old-name=x"], "invalid argument \"x\" for \"--new-name\" flag: it must be"),
        (&["--new-name=7"], "--new-name=7: it must not be 7"),
        (&["--port=x", "--nope"], "invalid argument \"x\" for \"--port\" flag: it must be a whole number"),
        (&["--name=\u{fffd}", "--port=\u{fffd}"], "invalid argument \"\u{fffd}\" for \"--port\" flag"),
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
            "--new-name INT  (default 0)\n        A flag with two names. (Once --old-name, which still works.)\n",
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
fn the_help_in_full() {
    let set = FlagSet::new("prog", "1.2.3", "does things.").group::<Fields>().group::<ProfilingFlags>();
    let help = set.read(["prog".into(), "-h".into()].into_iter()).expect_err("help").stdout;
    let wanted = "\
prog: does things.

Usage: prog [flags]

First:
  --name TEXT
        A name.
  --path PATH
        A path.
  --port INT  (default 8090)
        A port.
  --size INT  (default 0)
        A size.
  --wait DURATION  (default long)
        A wait.

Second:
  --list LIST
        A list.
  --on[=BOOL]  (default false)
        A switch.
  -b, --letter[=BOOL]  (default false)
        A switch with a letter.
  --new-name INT  (default 0)
        A flag with two names. (Once --old-name, which still works.)

Health and administration:
  --enable-profiling[=BOOL]  (default false)
        Serve profiles on the admin port.
  --enable-contention-profiling[=BOOL]  (default false)
        Needs --enable-profiling. Accepted without effect: profiles of lock contention belong to
        Go's runtime.
  --status-on-any-address[=BOOL]  (default false)
        Serve / and /statusz even if the admin port does not listen on a loopback address. Everyone
        who reaches the port can then read peers, targets and errors. (Not a flag of the Go
        programs.)

This program:
  -h, --help
        Prints this text.
  --version
        Prints the version.
";
    assert_eq!(help, wanted);
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
    assert!(read(&["--log-format=xml"]).is_err());
}

#[test]
fn ineffective_flags_are_named() {
    assert_eq!(log(&["--log-file=/x"]).1, ["--log-file has no effect without --logtostderr=false"]);
    let warnings = read(&["--log-backtrace-at=a.go:7"]).unwrap().2;
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
