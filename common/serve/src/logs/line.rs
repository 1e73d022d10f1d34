//! Renders one event as one line.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::{self, Write};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

use super::verbosity::severity;
use super::{Format, Options, escape};

/// The longest line, in bytes. A longer one is cut and marked.
const LINE_LIMIT: usize = 8 * 1024;

/// The process id as in klog's header. Asking the kernel for each line took 0.8 % of a dial's CPU.
static PID: LazyLock<String> = LazyLock::new(|| format!("{:7}", std::process::id()));

thread_local! {
    /// The second of this thread's last line, since 1970, as in text and in JSON. To render the date of each line took a
    /// sixth of its instructions.
    static SECOND: RefCell<(u64, [String; 2])> = const { RefCell::new((u64::MAX, [const { String::new() }; 2])) };
}

/// The format of lines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    format: Format,
    headers: bool,
    folders: bool,
}

impl Style {
    pub(super) fn new(options: &Options) -> Self {
        Self { format: options.format, headers: !options.skip_headers, folders: options.add_dir_header }
    }

    /// Text without a header.
    pub(super) fn bare(format: Format) -> Self {
        Self { format, headers: false, folders: false }
    }

    /// The last line of a process that gives up.
    pub(super) fn fatal(self, message: &str) -> String {
        let fields = Fields { format: self.format, message: message.to_owned(), rest: String::new() };
        self.assemble(Level::ERROR, ("main.rs", 1), &fields, now())
    }

    /// The event with a newline, at this time since 1970.
    pub(super) fn render(self, event: &Event<'_>, now: Duration) -> String {
        let (message, rest) = (String::with_capacity(64), String::with_capacity(192));
        let mut fields = Fields { format: self.format, message, rest };
        event.record(&mut fields);
        let (file, number) = caller(event.metadata(), self.folders);
        self.assemble(*event.metadata().level(), (&file, number), &fields, now)
    }

    /// The line with the number of lost lines.
    pub(super) fn lost(self, lines: u64) -> String {
        let message = "log lines were lost".to_owned();
        let mut fields = Fields { format: self.format, message, rest: String::new() };
        fields.bare("lines", &lines);
        self.assemble(Level::WARN, ("writer.rs", 1), &fields, now())
    }

    fn assemble(self, level: Level, (file, number): (&str, u32), fields: &Fields, now: Duration) -> String {
        let mut line = String::with_capacity(64 + fields.message.len() + fields.rest.len());
        let (_, letter, level) = severity(level);
        // Writing to a String cannot fail.
        match self.format {
            Format::Text => {
                if self.headers {
                    line.push(letter);
                    push_time(&mut line, now, Format::Text);
                    line.extend([" ", &PID, " ", file]);
                    let _ = write!(line, ":{number}] ");
                }
                if fields.rest.is_empty() {
                    escape::plain(&mut line, &fields.message);
                } else {
                    escape::quoted(&mut line, &fields.message);
                    line.push_str(&fields.rest);
                }
                if line.len() > LINE_LIMIT {
                    line.truncate(line.floor_char_boundary(LINE_LIMIT));
                    line.push_str("...(cut)");
                }
            }
            Format::Json => {
                let ts = rfc3339(now);
                let head = format!("\"ts\":\"{ts}\",\"level\":\"{level}\",\"caller\":\"{file}:{number}\"");
                let message = escape::json(&fields.message);
                if head.len() + message.len() + fields.rest.len() > LINE_LIMIT {
                    let message = escape::json(escape::cut(&fields.message, LINE_LIMIT / 8));
                    let _ = write!(line, "{{{head},\"msg\":{message},\"cut\":true}}");
                } else {
                    let _ = write!(line, "{{{head},\"msg\":{message}{}}}", fields.rest);
                }
            }
        }
        line.push('\n');
        line
    }
}

/// The wall clock, for lines only.
#[allow(clippy::disallowed_methods, reason = "the log is where wall-clock time belongs")]
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The file and the line, with the folder for a `mod.rs` or if requested.
fn caller<'a>(metadata: &Metadata<'a>, folders: bool) -> (Cow<'a, str>, u32) {
    let mut parts = metadata.file().unwrap_or("unknown").rsplit('/');
    let (file, number) = (parts.next().unwrap_or_default(), metadata.line().unwrap_or(1));
    if !folders && !matches!(file, "mod.rs" | "lib.rs") {
        return (file.into(), number);
    }
    let folder = parts.find(|folder| file != "lib.rs" || *folder != "src").unwrap_or_default();
    (format!("{folder}/{file}").into(), number)
}

/// The fields with names that operators choose.
const IDS: [&str; 2] = ["agentID", "serverID"];

/// Collects an event's rendered fields.
struct Fields {
    format: Format,
    message: String,
    rest: String,
}

impl Fields {
    fn string(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let name = field.name();
        if name == "message" {
            // Writing to a String cannot fail.
            let _ = self.message.write_fmt(value);
            return;
        }
        match self.format {
            Format::Text => {
                self.rest.extend([" ", name, "="]);
                let start = self.rest.len();
                let _ = self.rest.write_fmt(value);
                // Numbers stay unchanged. An id is a string, even of digits.
                let bare = self.rest.get(start..).is_some_and(|value| value.parse::<i64>().is_ok());
                if !bare || IDS.contains(&name) {
                    escape::quote(&mut self.rest, start);
                }
            }
            Format::Json => {
                let _ = write!(self.rest, ",\"{name}\":{}", escape::json(&value.to_string()));
            }
        }
    }

    fn bare(&mut self, name: &str, value: &dyn fmt::Display) {
        let _ = match self.format {
            Format::Text => write!(self.rest, " {name}={value}"),
            Format::Json => write!(self.rest, ",\"{name}\":{value}"),
        };
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.string(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.string(field, format_args!("{value:?}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.bare(field.name(), &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.bare(field.name(), &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field.name(), &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinities.
        if value.is_finite() {
            self.bare(field.name(), &value)
        } else {
            self.string(field, format_args!("{value}"))
        }
    }
}

/// The time in text lines, without microseconds.
const KLOG: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[month][day] [hour]:[minute]:[second]");
/// The time in JSON lines, without microseconds.
const RFC_3339: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[year]-[month]-[day]T[hour]:[minute]:[second]");
/// The time in a file's header.
const OPENING: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[year]/[month]/[day] [hour]:[minute]:[second]");
/// The time in a file's name.
const COMPACT: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[year][month][day]-[hour][minute][second]");

/// Appends a time since 1970 with microseconds, as lines of this format have it.
fn push_time(out: &mut String, since_epoch: Duration, format: Format) {
    let micros = since_epoch.subsec_micros();
    SECOND.with_borrow_mut(|(second, [text, json])| {
        if *second != since_epoch.as_secs() {
            *second = since_epoch.as_secs();
            (*text, *json) = (utc(since_epoch, KLOG), utc(since_epoch, RFC_3339));
        }
        // Writing to a String cannot fail.
        let _ = match format {
            Format::Text => write!(out, "{text}.{micros:06}"),
            Format::Json => write!(out, "{json}.{micros:06}Z"),
        };
    });
}

/// A time since 1970, in UTC.
fn utc(since_epoch: Duration, format: &[BorrowedFormatItem<'_>]) -> String {
    let since_epoch = since_epoch.try_into().unwrap_or(time::Duration::MAX);
    // The formats use only fields that every time has.
    OffsetDateTime::UNIX_EPOCH.saturating_add(since_epoch).format(format).unwrap_or_default()
}

/// A time since 1970, as in JSON lines.
pub(super) fn rfc3339(since_epoch: Duration) -> String {
    let mut text = String::with_capacity(27);
    push_time(&mut text, since_epoch, Format::Json);
    text
}

/// The current time, for a file's header and for its name.
pub(super) fn stamps() -> (String, String) {
    let now = now();
    (utc(now, OPENING), utc(now, COMPACT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        // Checked against `date -u -d @SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (1_795_278_845, "2026-11-21T16:34:05.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_secs(seconds)), text);
        }
        let moment = Duration::from_micros(1_795_278_845_123_456);
        let mut line = String::new();
        for micros in [123_456, 7, 1_000_000] {
            let moment = Duration::from_secs(1_795_278_845) + Duration::from_micros(micros);
            push_time(&mut line, moment, Format::Text);
            line.push(' ');
        }
        assert_eq!(line, "1121 16:34:05.123456 1121 16:34:05.000007 1121 16:34:06.000000 ");
        assert_eq!(utc(moment, OPENING), "2026/11/21 16:34:05");
        assert_eq!(utc(moment, COMPACT), "20261121-163405");
        assert!(rfc3339(Duration::MAX).starts_with("9999-12-31T"));
    }
}
