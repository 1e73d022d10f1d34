//! klog's flags, which both binaries have, and our `--log-format`.
//!
//! Names, defaults and formats are klog's (2.140) with dashes instead of underscores, as in the Go binaries; the
//! underscore forms are unknown flags there and here. This module opens no file and writes no line.

use std::path::PathBuf;

use crate::record::path;
use crate::{Value, one_of};

crate::flags! {
    /// How and where the log is written.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LogOptions {
        "Log" {
            /// Verbosity: the program writes lines up to this level.
            verbosity("v"): i32 = "4" [letter = 'v'],
            /// Verbosity of source files whose names match a pattern.
            vmodule: Vec<(String, i32)> = "",
            /// text (klog's format) or json (one object on each line). (Not a flag of the Go programs.)
            format("log-format"): LogFormat = "text"
                => one_of(&[("text", LogFormat::Text), ("json", LogFormat::Json)], "it must be text or json"),
            /// Log to standard error instead of files.
            logtostderr: bool = "true",
            /// Log to standard error as well as to files. Needs --logtostderr=false.
            alsologtostderr: bool = "false",
            /// Lowest severity to which --alsologtostderr applies.
            alsologtostderrthreshold: Severity = "INFO",
            /// Lowest severity of lines that go to standard error even if the program logs to files.
            stderrthreshold: Severity = "ERROR",
            /// If true, --stderrthreshold is ignored while --logtostderr=true.
            legacy_stderr_threshold_behavior: bool = "true",
            /// Log to this one file. Needs --logtostderr=false.
            log_file: Option<PathBuf> = "" => path,
            /// Size in MiB at which the program truncates --log-file; 0: unlimited.
            log_file_max_size: u64 = "1800",
            /// Log to files in this directory. Needs --logtostderr=false.
            log_dir: Option<PathBuf> = "" => path,
            /// Write each line only to the file of its severity.
            one_output: bool = "false",
            /// Omit the prefix of each line.
            skip_headers: bool = "false",
            /// Omit the header lines of files.
            skip_log_headers: bool = "false",
            /// Add the directory of the source file to each line.
            add_dir_header: bool = "false",
            log_backtrace_at: SourceLine = "" [no_effect = "it names lines of Go sources"],
        }
    }
}

impl LogOptions {
    /// The heading of the flags in the help.
    pub(crate) const HEADING: &'static str = "Log";

    /// One warning for each option without effect.
    pub fn warnings(&self) -> Vec<String> {
        let file_flags = [
            ("log-file", self.log_file.is_some()),
            ("log-dir", self.log_dir.is_some()),
            ("alsologtostderr", self.alsologtostderr),
        ];
        let given = file_flags.into_iter().filter(|(_, given)| self.logtostderr && *given);
        given.map(|(name, _)| format!("--{name} has no effect without --logtostderr=false")).collect()
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        crate::set::defaults()
    }
}

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// klog's: `I0821 10:00:00.000000       1 file.rs:12] message`.
    Text,
    /// One JSON object per line.
    Json,
}

/// klog's severities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// All lines.
    Info,
    /// Warnings and above.
    Warning,
    /// Errors and above.
    Error,
    /// Errors that end the process.
    Fatal,
}

impl Value for Severity {
    const KIND: &'static str = "SEVERITY";

    /// A name in any case, or a number; numbers out of range count as the nearest severity.
    fn parse(text: &str) -> Result<Self, String> {
        let known = [Self::Info, Self::Warning, Self::Error, Self::Fatal];
        if let Some(named) = known.into_iter().find(|severity| severity.name().eq_ignore_ascii_case(text)) {
            return Ok(named);
        }
        let want = "it must be INFO, WARNING, ERROR, FATAL or a number from 0 to 3";
        let number = text.parse::<i32>().map_err(|_| want.to_owned())?;
        Ok(known[number.clamp(0, 3) as usize])
    }

    fn shown(&self) -> String {
        self.name().to_owned()
    }
}

impl Severity {
    /// Its name in flags and in the names of files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// `--vmodule`: levels above 0 for files by pattern. The first pattern that matches counts.
impl Value for Vec<(String, i32)> {
    const KIND: &'static str = "PATTERN=LEVEL,...";

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "it must be a comma-separated list of pattern=LEVEL".to_owned();
        let mut modules = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (pattern, level) = part.split_once('=').ok_or_else(wrong)?;
            let level = level.parse().map_err(|_| wrong())?;
            match level {
                _ if pattern.is_empty() => return Err(wrong()),
                ..0 => return Err("a level must not be below 0".to_owned()),
                0 => {}
                1.. => modules.push((pattern.to_owned(), level)),
            }
        }
        Ok(modules)
    }

    fn shown(&self) -> String {
        self.iter().map(|(pattern, level)| format!("{pattern}={level}")).collect::<Vec<_>>().join(",")
    }
}

/// `FILE.go:LINE`, validated and dropped: it names a line of Go's sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLine;

impl Value for SourceLine {
    const KIND: &'static str = "FILE:LINE";

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "it must be FILE.EXTENSION:LINE with a line above 0".to_owned();
        if text.is_empty() {
            return Ok(Self);
        }
        let (file, line) = text.split_once(':').ok_or_else(wrong)?;
        let line: i64 = line.parse().map_err(|_| wrong())?;
        if file.contains('.') && line > 0 { Ok(Self) } else { Err(wrong()) }
    }

    fn shown(&self) -> String {
        String::new()
    }
}
