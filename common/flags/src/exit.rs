//! The ways in which a command line ends the process before its start: help, version, or a one-line error.

use std::io::Write;
use std::process::ExitCode;

use crate::FlagError;

/// The output and the exit code. The process has not bound, opened or started anything yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// 0 for help and version, 1 for every error, as in the Go programs.
    pub code: u8,
    /// For standard output; empty or complete lines.
    pub stdout: String,
    /// For standard error; empty or exactly one line.
    pub stderr: String,
}

impl Exit {
    /// A successful end that prints `text` on standard output.
    pub fn show(text: impl Into<String>) -> Self {
        Self { code: 0, stdout: text.into(), stderr: String::new() }
    }

    /// An error: one line on standard error. Control characters from an argument, including line breaks, are escaped.
    pub fn refuse(reason: &str) -> Self {
        let mut stderr = String::new();
        for c in reason.chars() {
            if c.is_control() { stderr.extend(c.escape_default()) } else { stderr.push(c) }
        }
        Self { code: 1, stdout: String::new(), stderr: stderr + "\n" }
    }

    /// Prints the output and returns the exit code for `main`. A closed standard output or error does not change the
    /// code.
    pub fn leave(self) -> ExitCode {
        let _ = std::io::stdout().write_all(self.stdout.as_bytes());
        let _ = std::io::stderr().write_all(self.stderr.as_bytes());
        ExitCode::from(self.code)
    }
}

impl From<FlagError> for Exit {
    fn from(refusal: FlagError) -> Self {
        Self::refuse(&refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_for_any_argument() {
        let exit = Exit::refuse("unknown flag: --a\nb\u{1b}[31m");
        assert_eq!(exit.stderr, "unknown flag: --a\\nb\\u{1b}[31m\n");
        assert_eq!((exit.code, exit.stdout.as_str()), (1, ""));
    }
}
