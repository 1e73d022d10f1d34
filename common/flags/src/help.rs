//! The help text: headings; one paragraph for each flag, with its default, deprecation or lack of effect.

use std::fmt::Write;

use crate::set::{Flag, Remark};

/// The width of the text in columns.
const WIDTH: usize = 100;
const INDENT: &str = "        ";

pub(crate) fn render(program: &str, about: &str, flags: &[Flag<'_>]) -> String {
    let mut text = format!("{program}: {about}\n\nUsage: {program} [flags]\n");
    let mut heading = "";
    for flag in flags {
        if flag.heading != heading {
            heading = flag.heading;
            let _ = write!(text, "\n{heading}:\n");
        }
        describe(&mut text, flag);
    }
    text.push_str("\nThis program:\n");
    text.push_str("  -h, --help\n        Prints this text.\n  --version\n        Prints the version.\n");
    text
}

fn describe(text: &mut String, flag: &Flag<'_>) {
    text.push_str("  ");
    if let Some(letter) = flag.letter {
        let _ = write!(text, "-{}, ", char::from(letter));
    }
    let _ = write!(text, "--{}", flag.name);
    let kind = flag.value.kind();
    let _ = if flag.value.stands_alone() { write!(text, "[={kind}]") } else { write!(text, " {kind}") };
    if !flag.default.is_empty() {
        let _ = write!(text, "  (default {})", flag.default);
    }
    text.push('\n');
    let mut words = flag.help.to_owned();
    if let Some(old) = flag.old_name {
        let _ = write!(words, " (Once --{old}, which still works.)");
    }
    match flag.remark {
        Some(Remark::Deprecated(instead)) => {
            let _ = write!(words, " Deprecated: {instead}.");
        }
        Some(Remark::NoEffect(why)) => {
            let _ = write!(words, " Accepted without effect: {why}.");
        }
        None => {}
    }
    wrap(text, words.trim_start());
}

fn wrap(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH - INDENT.len() {
            text.push('\n');
            column = 0;
        }
        text.push_str(if column == 0 { INDENT } else { " " });
        column += length + usize::from(column > 0);
        text.push_str(word);
    }
    text.push('\n');
}
