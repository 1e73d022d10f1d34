//! Renders one event as one line.

use std::fmt::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};

use super::verbosity::severity;
use super::{Format, Options, escape};

/// The longest line, in bytes. A longer one is cut and marked.
const LINE_LIMIT: usize = 8 * 1024;

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

    /// The event with a newline, at this time since 1970.
    pub(super) fn render(self, event: &Event<'_>, now: Duration) -> String {
        let mut fields = Fields { format: self.format, message: String::new(), rest: String::new() };
        event.record(&mut fields);
        self.assemble(event.metadata(), &fields, now)
    }

    fn assemble(self, metadata: &Metadata<'_>, fields: &Fields, now: Duration) -> String {
        let mut line = String::with_capacity(64 + fields.message.len() + fields.rest.len());
        let caller = Caller { metadata, folders: self.folders };
        let (_, letter, level) = severity(*metadata.level());
        // Writing to a String cannot fail.
        match self.format {
            Format::Text => {
                if self.headers {
                    let _ = write!(line, "{letter}{} {:7} {caller}] ", utc(now, KLOG), std::process::id());
                }
                if fields.rest.is_empty() {
                    escape::plain(&mut line, &fields.message);
                } else {
                    escape::quoted(&mut line, &fields.message);
                    line.push_str(&fields.rest);
                }
                limit(&mut line, "...(cut)");
            }
            Format::Json => {
                let ts = utc(now, RFC_3339);
                let head = format!("\"ts\":\"{ts}\",\"level\":\"{level}\",\"caller\":\"{caller}\"");
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
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn limit(line: &mut String, mark: &str) {
    if line.len() > LINE_LIMIT {
        line.truncate(line.floor_char_boundary(LINE_LIMIT));
        line.push_str(mark);
    }
}

/// `file.rs:42`, with the folder for a `mod.rs` or if requested.
struct Caller<'a> {
    metadata: &'a Metadata<'a>,
    folders: bool,
}

impl fmt::Display for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = Path::new(self.metadata.file().unwrap_or("unknown"));
        let part =
            |part: Option<&std::ffi::OsStr>| part.and_then(|p| p.to_str()).unwrap_or_default().to_owned();
        let file = part(path.file_name());
        if self.folders || matches!(file.as_str(), "mod.rs" | "lib.rs") {
            let mut folders = path.iter().rev().skip(1).filter(|folder| file != "lib.rs" || *folder != "src");
            write!(f, "{}/", part(folders.next()))?;
        }
        write!(f, "{file}:{}", self.metadata.line().unwrap_or(1))
    }
}

/// Collects an event's rendered fields.
struct Fields {
    format: Format,
    message: String,
    rest: String,
}

impl Fields {
    fn string(&mut self, field: &Field, value: &str) {
        match (field.name(), self.format) {
            ("message", _) => value.clone_into(&mut self.message),
            (name, Format::Text) => {
                let _ = write!(self.rest, " {name}=");
                // Numbers, and strings that are already quoted (by `?`), stay unchanged.
                let bare = is_number(value) || is_quoted(value);
                if bare { self.rest.push_str(value) } else { escape::quoted(&mut self.rest, value) }
            }
            (name, Format::Json) => {
                let _ = write!(self.rest, ",\"{name}\":{}", escape::json(value));
            }
        }
    }

    fn bare(&mut self, field: &Field, value: &dyn fmt::Display) {
        let _ = match self.format {
            Format::Text => write!(self.rest, " {}={value}", field.name()),
            Format::Json => write!(self.rest, ",\"{}\":{value}", field.name()),
        };
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Whether the text is one quoted string in which all quotes and backslashes are escaped, without harmful characters.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return false };
    let mut again = String::new();
    escape::plain(&mut again, inner);
    let mut escaped = false;
    for c in inner.chars() {
        escaped = match c {
            _ if escaped => false,
            '"' => return false,
            c => c == '\\',
        };
    }
    !escaped && again == inner
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.string(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.string(field, &format!("{value:?}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.bare(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.bare(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field, &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinities.
        if value.is_finite() { self.bare(field, &value) } else { self.string(field, &value.to_string()) }
    }
}

/// The time in text lines.
const KLOG: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[month][day] [hour]:[minute]:[second].[subsecond digits:6]");
/// The time in JSON lines.
const RFC_3339: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
/// The time in a file's header.
const OPENING: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[year]/[month]/[day] [hour]:[minute]:[second]");
/// The time in a file's name.
const COMPACT: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[year][month][day]-[hour][minute][second]");

/// A time since 1970, in UTC.
fn utc(since_epoch: Duration, format: &[BorrowedFormatItem<'_>]) -> String {
    let since_epoch = since_epoch.try_into().unwrap_or(time::Duration::MAX);
    // The formats use only fields that every time has.
    OffsetDateTime::UNIX_EPOCH.saturating_add(since_epoch).format(format).unwrap_or_default()
}

/// The current time, for a file's header and for its name.
pub(super) fn stamps() -> (String, String) {
    let now = now();
    (utc(now, OPENING), utc(now, COMPACT))
}

/// The current time, for text lines and for JSON lines.
pub(super) fn notice_stamps() -> (String, String) {
    let now = now();
    (utc(now, KLOG), utc(now, RFC_3339))
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
            assert_eq!(utc(Duration::from_secs(seconds), RFC_3339), text);
        }
        let moment = Duration::from_micros(1_795_278_845_123_456);
        assert_eq!(utc(moment, KLOG), "1121 16:34:05.123456");
        assert_eq!(utc(moment, OPENING), "2026/11/21 16:34:05");
        assert_eq!(utc(moment, COMPACT), "20261121-163405");
        assert!(utc(Duration::MAX, RFC_3339).starts_with("9999-12-31T"));
    }

    #[test]
    fn only_well_formed_quotes_stay() {
        assert!(is_quoted(r#""plain""#) && is_quoted(r#""with \" inside""#) && is_quoted(r#""""#));
        assert!(!is_quoted(r#""a" forged="b""#) && !is_quoted(r#""open\""#) && !is_quoted("\"a\nb\""));
        assert!(!is_quoted("\"") && !is_quoted(""));
    }
}
