//! The ways in which a command line ends the process before its start: help, version, or a one-line error.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use crate::{FlagError, LogOptions};

/// The exit code if standard output cannot be written: not 1, with which commands tell a bad result.
const NOT_WRITTEN: u8 = 2;

/// The output and the exit code. The process has not bound, opened or started anything yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// 0 for help and version, 1 for every error of a program's command line, as in the Go programs.
    pub code: u8,
    /// For standard output; empty or complete lines.
    pub stdout: String,
    /// For standard error; empty or exactly one line.
    pub stderr: String,
    /// How to log `stderr`, too; `None` if the log's flags are unknown.
    pub log: Option<Box<LogOptions>>,
}

impl Exit {
    /// A successful end that prints `text` on standard output.
    pub fn show(text: impl Into<String>) -> Self {
        Self { code: 0, stdout: text.into(), stderr: String::new(), log: None }
    }

    /// An error: one line on standard error. Control characters from an argument, including line breaks, are escaped.
    pub fn refuse(reason: &str) -> Self {
        let mut stderr = String::new();
        for c in reason.chars() {
            if c.is_control() { stderr.extend(c.escape_default()) } else { stderr.push(c) }
        }
        Self { code: 1, stdout: String::new(), stderr: stderr + "\n", log: None }
    }

    /// Prints the output and returns the exit code for `main`: [`NOT_WRITTEN`] if standard output cannot be written. A
    /// reader that closes it, such as `head`, does not change the code.
    pub fn leave(self) -> ExitCode {
        ExitCode::from(self.print(&mut std::io::stdout(), &mut std::io::stderr()))
    }

    fn print(&self, stdout: &mut impl Write, stderr: &mut impl Write) -> u8 {
        let written = stdout.write_all(self.stdout.as_bytes()).and_then(|()| stdout.flush());
        let _ = stderr.write_all(self.stderr.as_bytes());
        match written {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                let _ = writeln!(stderr, "cannot write to standard output: {error}");
                NOT_WRITTEN
            }
            _ => self.code,
        }
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

    /// Cannot be written.
    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_that_cannot_be_written_is_an_error_unless_its_reader_has_closed() {
        for (code, fault, result, line) in [
            (0, ErrorKind::StorageFull, 2, "cannot write to standard output: no storage space\n"),
            (1, ErrorKind::StorageFull, 2, "cannot write to standard output: no storage space\n"),
            (0, ErrorKind::BrokenPipe, 0, ""),
            (1, ErrorKind::BrokenPipe, 1, ""),
        ] {
            let mut stderr = Vec::new();
            let exit = Exit { code, ..Exit::show("healthy\n") };
            assert_eq!(exit.print(&mut Broken(fault), &mut stderr), result);
            assert_eq!(String::from_utf8_lossy(&stderr), line);
        }
    }

    #[test]
    fn an_error_is_one_line_for_any_argument() {
        let exit = Exit::refuse("unknown flag: --a\nb\u{1b}[31m");
        assert_eq!(exit.stderr, "unknown flag: --a\\nb\\u{1b}[31m\n");
        assert_eq!((exit.code, exit.stdout.as_str()), (1, ""));
    }
}
