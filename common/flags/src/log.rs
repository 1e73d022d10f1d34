//! klog's flags, which both binaries have, and our `--log-format`.
//!
//! Names, defaults and formats are klog's (2.140) with dashes instead of underscores, as in the Go binaries; the
//! underscore forms are unknown flags there and here. This module opens no file and writes no line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::go::integer;
use crate::value::utf8;
use crate::{FlagError, FlagSet, InvalidValue, Value};

/// How and where the log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// `-v`: lines up to this level are written. The default is 4 in both binaries.
    pub verbosity: i32,
    /// `--vmodule`: levels for files by pattern, which take precedence over [`Self::verbosity`]. The first matching
    /// pattern counts. Levels are above 0.
    pub vmodule: Vec<(String, i32)>,
    /// Log to standard error instead of files.
    pub logtostderr: bool,
    /// Log to standard error in addition to files.
    pub alsologtostderr: bool,
    /// The lowest severity that [`Self::alsologtostderr`] copies to standard error.
    pub alsologtostderrthreshold: Severity,
    /// The lowest severity that always goes to standard error when files are written.
    pub stderrthreshold: Severity,
    /// If true, [`Self::stderrthreshold`] is ignored while `logtostderr` is true.
    pub legacy_stderr_threshold_behavior: bool,
    /// The folder for files named by program, host, user and severity. `None`: the system's temporary folder.
    pub log_dir: Option<PathBuf>,
    /// One file for all lines; takes precedence over [`Self::log_dir`].
    pub log_file: Option<PathBuf>,
    /// The maximum size of the file in MiB, at which it is truncated; 0 means unlimited.
    pub log_file_max_size: u64,
    /// Omit the prefix of lines.
    pub skip_headers: bool,
    /// Omit the header of files.
    pub skip_log_headers: bool,
    /// Write each line only to the file of its own severity, not also to those of lower severities.
    pub one_output: bool,
    /// Include the source file's folder in the prefix.
    pub add_dir_header: bool,
    /// klog's text, or one JSON object per line.
    pub format: LogFormat,
}

impl Default for LogOptions {
    /// The defaults of the flags.
    fn default() -> Self {
        Self {
            verbosity: 4,
            vmodule: Vec::new(),
            logtostderr: true,
            alsologtostderr: false,
            alsologtostderrthreshold: Severity::Info,
            stderrthreshold: Severity::Error,
            legacy_stderr_threshold_behavior: true,
            log_dir: None,
            log_file: None,
            log_file_max_size: 1800,
            skip_headers: false,
            skip_log_headers: false,
            one_output: false,
            add_dir_header: false,
            format: LogFormat::Text,
        }
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
    /// A name in any case, or a number; numbers out of range count as the nearest severity.
    fn set(&mut self, text: &OsStr) -> Result<(), InvalidValue> {
        let text = utf8(text)?;
        let known = [Self::Info, Self::Warning, Self::Error, Self::Fatal];
        *self = match known.into_iter().find(|severity| severity.name().eq_ignore_ascii_case(text)) {
            Some(named) => named,
            None => match integer::level(text).map_err(|_| InvalidValue::because(WANT_SEVERITY))? {
                ..=0 => Self::Info,
                1 => Self::Warning,
                2 => Self::Error,
                3.. => Self::Fatal,
            },
        };
        Ok(())
    }
    fn shown(&self) -> String {
        self.name().to_owned()
    }
    fn kind(&self) -> &'static str {
        "SEVERITY"
    }
}

const WANT_SEVERITY: &str = "it must be INFO, WARNING, ERROR, FATAL or a number from 0 to 3";

impl Severity {
    const fn name(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// A level of `-v`: decimal only, unlike other numbers.
#[derive(Debug)]
struct Level(i32);

impl Value for Level {
    fn set(&mut self, text: &OsStr) -> Result<(), InvalidValue> {
        self.0 =
            integer::level(utf8(text)?).map_err(|_| InvalidValue::because("it must be a decimal number"))?;
        Ok(())
    }
    fn shown(&self) -> String {
        self.0.to_string()
    }
    fn kind(&self) -> &'static str {
        "LEVEL"
    }
}

/// `pattern=N,...`; each occurrence of the flag replaces the whole list.
#[derive(Debug, Default)]
struct Modules(Vec<(String, i32)>);

impl Value for Modules {
    fn set(&mut self, text: &OsStr) -> Result<(), InvalidValue> {
        let wrong = || InvalidValue::because("it must be a comma-separated list of pattern=LEVEL");
        let mut modules = Vec::new();
        for part in utf8(text)?.split(',').filter(|part| !part.is_empty()) {
            let (pattern, level) = part.split_once('=').ok_or_else(wrong)?;
            let level = integer::level(level).map_err(|_| wrong())?;
            match level {
                _ if pattern.is_empty() => return Err(wrong()),
                ..0 => return Err(InvalidValue::because("a level must not be below 0")),
                0 => {}
                1.. => modules.push((pattern.to_owned(), level)),
            }
        }
        self.0 = modules;
        Ok(())
    }
    fn shown(&self) -> String {
        String::new()
    }
    fn kind(&self) -> &'static str {
        "PATTERN=LEVEL,..."
    }
}

/// `FILE.go:LINE`, validated and dropped: it names a line of Go's sources.
#[derive(Debug, Default)]
struct SourceLine;

impl Value for SourceLine {
    fn set(&mut self, text: &OsStr) -> Result<(), InvalidValue> {
        let wrong = || InvalidValue::because("it must be FILE.EXTENSION:LINE with a line above 0");
        let text = utf8(text)?;
        if text.is_empty() {
            return Ok(());
        }
        let (file, line) = text.split_once(':').ok_or_else(wrong)?;
        let line = integer::decimal(line).map_err(|_| wrong())?;
        if file.contains('.') && line > 0 { Ok(()) } else { Err(wrong()) }
    }
    fn shown(&self) -> String {
        String::new()
    }
    fn kind(&self) -> &'static str {
        "FILE:LINE"
    }
}

/// The fields that the log flags set, with their defaults.
#[derive(Debug)]
pub struct LogFlags {
    v: Level,
    vmodule: Modules,
    logtostderr: bool,
    alsologtostderr: bool,
    alsologtostderrthreshold: Severity,
    stderrthreshold: Severity,
    legacy_stderr_threshold_behavior: bool,
    log_dir: OsString,
    log_file: OsString,
    log_file_max_size: u64,
    log_backtrace_at: SourceLine,
    skip_headers: bool,
    skip_log_headers: bool,
    one_output: bool,
    add_dir_header: bool,
    log_format: String,
}

impl Default for LogFlags {
    fn default() -> Self {
        Self {
            v: Level(4),
            vmodule: Modules::default(),
            logtostderr: true,
            alsologtostderr: false,
            alsologtostderrthreshold: Severity::Info,
            stderrthreshold: Severity::Error,
            legacy_stderr_threshold_behavior: true,
            log_dir: OsString::new(),
            log_file: OsString::new(),
            log_file_max_size: 1800,
            log_backtrace_at: SourceLine,
            skip_headers: false,
            skip_log_headers: false,
            one_output: false,
            add_dir_header: false,
            log_format: "text".to_owned(),
        }
    }
}

impl LogFlags {
    /// The heading of the flags in the help.
    pub(crate) const HEADING: &'static str = "Log";

    /// Adds the flags to a binary's set, under their own heading.
    pub fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading(Self::HEADING);
        set.add("v", &mut self.v, "Verbosity: lines of a level up to this one are written.").letter('v');
        set.add(
            "vmodule",
            &mut self.vmodule,
            "Verbosity of single source files, by patterns of their names.",
        );
        set.add(
            "log-format",
            &mut self.log_format,
            "text (as klog writes it) or json (one object to a line). (Not a flag of the Go programs.)",
        );
        set.add("logtostderr", &mut self.logtostderr, "Log to standard error instead of files.");
        set.add(
            "alsologtostderr",
            &mut self.alsologtostderr,
            "Log to standard error as well as to files. Needs --logtostderr=false.",
        );
        set.add(
            "alsologtostderrthreshold",
            &mut self.alsologtostderrthreshold,
            "Severity from which --alsologtostderr applies.",
        );
        set.add(
            "stderrthreshold",
            &mut self.stderrthreshold,
            "Severity from which lines go to standard error even when files are written.",
        );
        set.add(
            "legacy-stderr-threshold-behavior",
            &mut self.legacy_stderr_threshold_behavior,
            "If true, --stderrthreshold is ignored while --logtostderr=true.",
        );
        set.add("log-file", &mut self.log_file, "Log to this one file. Needs --logtostderr=false.");
        set.add(
            "log-file-max-size",
            &mut self.log_file_max_size,
            "Size in MiB at which --log-file is begun anew; 0 is unlimited.",
        );
        set.add("log-dir", &mut self.log_dir, "Log to files in this directory. Needs --logtostderr=false.");
        set.add("one-output", &mut self.one_output, "Write a line to the file of its own severity only.");
        set.add("skip-headers", &mut self.skip_headers, "Leave out the prefix of each line.");
        set.add("skip-log-headers", &mut self.skip_log_headers, "Leave out the opening lines of files.");
        set.add("add-dir-header", &mut self.add_dir_header, "Name the source file's directory in each line.");
        set.add("log-backtrace-at", &mut self.log_backtrace_at, "").no_effect("it names lines of Go sources");
    }

    /// The typed options, and one warning for each given flag without effect.
    pub fn options(self) -> Result<(LogOptions, Vec<String>), FlagError> {
        let warnings = self.ineffective();
        let format = match self.log_format.as_str() {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            other => {
                let want = "it must be text or json";
                return Err(FlagError::value("log-format", format_args!("{other:?}"), want));
            }
        };
        let path = |text: OsString| (!text.is_empty()).then(|| PathBuf::from(text));
        let options = LogOptions {
            verbosity: self.v.0,
            vmodule: self.vmodule.0,
            logtostderr: self.logtostderr,
            alsologtostderr: self.alsologtostderr,
            alsologtostderrthreshold: self.alsologtostderrthreshold,
            stderrthreshold: self.stderrthreshold,
            legacy_stderr_threshold_behavior: self.legacy_stderr_threshold_behavior,
            log_dir: path(self.log_dir),
            log_file: path(self.log_file),
            log_file_max_size: self.log_file_max_size,
            skip_headers: self.skip_headers,
            skip_log_headers: self.skip_log_headers,
            one_output: self.one_output,
            add_dir_header: self.add_dir_header,
            format,
        };
        Ok((options, warnings))
    }

    fn ineffective(&self) -> Vec<String> {
        let file_flags = [
            ("log-file", !self.log_file.is_empty()),
            ("log-dir", !self.log_dir.is_empty()),
            ("alsologtostderr", self.alsologtostderr),
        ];
        let given = file_flags.into_iter().filter(|(_, given)| self.logtostderr && *given);
        given.map(|(name, _)| format!("--{name} has no effect without --logtostderr=false")).collect()
    }
}
