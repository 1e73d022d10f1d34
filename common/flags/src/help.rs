//! The help text: headings; one paragraph for each flag, with its default, old name or lack of effect.

use std::fmt::Write;

use crate::Flag;
use crate::set::ProgramFlags;

/// The width of the text in columns.
const WIDTH: usize = 100;
const INDENT: &str = "        ";

pub(crate) fn render(program: &str, about: &str, usage: &str, flags: &[Flag]) -> String {
    let mut text = format!("{program}: {about}\n\nUsage: {program} [flags]{usage}\n");
    let mut heading = "";
    for flag in flags {
        let above = flag.arg.get_help_heading().unwrap_or_default();
        if above != heading {
            heading = above;
            let _ = write!(text, "\n{heading}:\n");
        }
        let title = match flag.letter {
            Some(letter) => format!("-{letter}, --{}", flag.name),
            None => format!("--{}", flag.name),
        };
        // The program's own flags are actions: their values are not for people.
        let value = if heading == ProgramFlags::HEADING { String::new() } else { value(flag) };
        let _ = writeln!(text, "  {title}{value}");
        wrap(&mut text, &description(flag));
    }
    text
}

/// The placeholder of the flag's value, and its default.
fn value(flag: &Flag) -> String {
    let kind = flag.arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    let kind = if flag.stands_alone() { format!("[={kind}]") } else { format!(" {kind}") };
    match flag.default() {
        default if default.is_empty() => kind,
        default => format!("{kind}  (default {default})"),
    }
}

/// The flag's meaning, old name or lack of effect.
fn description(flag: &Flag) -> String {
    let mut words = flag.arg.get_help().map(ToString::to_string).unwrap_or_default();
    if let Some(old) = flag.old_name {
        let _ = write!(words, " (Once --{old}, which still works.)");
    }
    if let Some(why) = flag.no_effect {
        let _ = write!(words, " Accepted without effect: {why}.");
    }
    words
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
