//! Flag values in Go's syntax, and command lines: an accepted value parses to the same value when it is printed, and
//! every error has a text.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use flags::go::{boolean, integer, list};
use flags::{Exit, FlagSet, GoDuration};

/// Parses values, and the same bytes as a command line whose words are separated by line feeds.
pub fn durations(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        values(text);
    }
    command_line(data);
}

fn values(text: &str) {
    match text.parse::<GoDuration>() {
        Ok(duration) => assert_eq!(duration.to_string().parse(), Ok(duration), "{text:?}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(number) = integer::<i64>(text) {
        assert_eq!(integer(&number.to_string()), Ok(number), "{text:?}");
    }
    if let Ok(truth) = boolean(text) {
        assert_eq!(boolean(&truth.to_string()), Ok(truth), "{text:?}");
    }
    let items = list(text);
    if !items.join(",").starts_with('[') && items != [""] {
        assert_eq!(list(&items.join(",")), items, "{text:?}");
    }
}

flags::flags! {
    /// Flags of every kind.
    struct Flags {
        "Flags" {
            /// A text.
            text: String = "",
            /// A number.
            number: i64 = "0" [letter = 'n'],
            /// A truth.
            truth: bool = "false" [letter = 't'],
            /// A time.
            time: GoDuration = "0s" [old_name = "duration"],
            /// A list.
            items: Vec<String> = "" [no_effect = "none is known"],
        }
    }
}

fn command_line(data: &[u8]) {
    let set = FlagSet::new("program", "v0", "a program.").group::<Flags>();
    let words = data.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec()));
    match set.read(std::iter::once("program".into()).chain(words)) {
        Ok(given) => {
            let is_line = |warning: &String| warning.starts_with("--") && !warning.contains('\n');
            assert!(given.warnings.iter().all(is_line) && given.group::<Flags>().is_ok());
        }
        Err(Exit { stdout, stderr, .. }) => assert_ne!(stdout.is_empty(), stderr.is_empty()),
    }
}
