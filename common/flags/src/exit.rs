//! How a command line ends the process before it has begun: help, version, or one line of refusal.

use std::io::Write;
use std::process::ExitCode;

use crate::{Refusal, SyntaxError};

/// What to print and the code to leave with. Nothing was bound, opened or started when one of these appears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// 0 for help and version, 1 for every refusal, as the Go peers do.
    pub code: u8,
    /// For standard output; empty or whole lines.
    pub stdout: String,
    /// For standard error; empty or exactly one line.
    pub stderr: String,
}

impl Exit {
    /// A successful end that prints `text` on standard output.
    pub fn show(text: impl Into<String>) -> Self {
        Self { code: 0, stdout: text.into(), stderr: String::new() }
    }

    /// A refusal: one line on standard error. Line breaks and control characters that came in with an
    /// argument are escaped, so that it stays one line.
    pub fn refuse(reason: &str) -> Self {
        let mut line: String = reason.chars().flat_map(printable).collect();
        line.push('\n');
        Self { code: 1, stdout: String::new(), stderr: line }
    }

    /// Prints what there is to print and returns the code for `main`. A closed standard output or error is no
    /// reason to fail differently.
    pub fn leave(self) -> ExitCode {
        let _ = std::io::stdout().write_all(self.stdout.as_bytes());
        let _ = std::io::stderr().write_all(self.stderr.as_bytes());
        ExitCode::from(self.code)
    }
}

impl From<Refusal> for Exit {
    fn from(refusal: Refusal) -> Self {
        Self::refuse(&refusal.to_string())
    }
}

impl From<SyntaxError> for Exit {
    fn from(error: SyntaxError) -> Self {
        Self::refuse(&error.to_string())
    }
}

fn printable(c: char) -> impl Iterator<Item = char> {
    let escaped = c.is_control().then(|| c.escape_default());
    let plain = escaped.is_none().then_some(c);
    escaped.into_iter().flatten().chain(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_whatever_the_argument_held() {
        let exit = Exit::refuse("unknown flag: --a\nb\u{1b}[31m");
        assert_eq!(exit.stderr, "unknown flag: --a\\nb\\u{1b}[31m\n");
        assert_eq!((exit.code, exit.stdout.as_str()), (1, ""));
    }
}
