//! The flags of both programs for the connection log and for traces.

use std::path::PathBuf;

use crate::FlagError;

crate::flags! {
    /// Where connections and dials are recorded.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RecordOptions {
        "Connection log and traces" {
            /// File to which the program appends one line of JSON for each connection that ends and each failed dial;
            /// stderr: standard error. At 100 MiB the program renames the file to PATH.1 and starts a new one. Empty:
            /// none. (Not a flag of the Go programs.)
            connection_log: Option<PathBuf> = "" => path,
            /// OTLP collector to which the program sends spans of dials, by gRPC without TLS, such as http://HOST:4317.
            /// Empty: none. (Not a flag of the Go programs.)
            otlp_endpoint: Option<String> = "" => endpoint,
            /// Fraction of dials to trace, from 0 to 1. An agent uses it only for servers that send no trace context, such as
            /// Go's. (Not a flag of the Go programs.)
            otlp_sample_ratio: f32 = "0.01" => ratio,
        }
    }
}

impl RecordOptions {
    /// A row for [`crate::without_effect`].
    pub fn sample_ratio_without_effect(&self) -> (&'static str, bool, &'static str) {
        ("otlp-sample-ratio", self.otlp_endpoint.is_none(), "there is no --otlp-endpoint")
    }
}

/// A path; `None` if it is empty.
pub(crate) fn path(_flag: &'static str, path: PathBuf) -> Result<Option<PathBuf>, FlagError> {
    Ok(Some(path).filter(|path| !path.as_os_str().is_empty()))
}

/// `HOST:PORT` of the collector.
#[expect(clippy::needless_pass_by_value, reason = "a check gets the value of its flag")]
fn endpoint(flag: &'static str, text: String) -> Result<Option<String>, FlagError> {
    if text.is_empty() {
        return Ok(None);
    }
    let authority = text.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let named = |authority: &&str| {
        authority.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(['/', '@']) && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
    };
    match authority.filter(named) {
        Some(authority) => Ok(Some(authority.to_owned())),
        None => Err(FlagError::value(flag, format_args!("{text:?}"), "it must be http://HOST:PORT")),
    }
}

fn ratio(flag: &'static str, ratio: f32) -> Result<f32, FlagError> {
    match ratio {
        0.0..=1.0 => Ok(ratio),
        _ => Err(FlagError::value(flag, ratio, "it must be from 0 to 1")),
    }
}
