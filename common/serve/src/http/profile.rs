//! A CPU profile of this process, in the format of `go tool pprof`: protobuf, gzipped.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, HeaderValue};
use nix::sys::signal::{self, Signal};
use pprof::protos::{Mapping, Message, Profile};
use pprof::{ProfilerGuard, ProfilerGuardBuilder};

use super::routes::{Response, error, reply};

/// Samples per second of CPU time, as Go's profiler takes.
const FREQUENCY: i32 = 100;
/// The longest profile, in seconds.
const MAX_SECONDS: u64 = 600;
/// For the file of samples that the table in memory has no place for. Containers have it, images no /tmp.
const SAMPLES: &str = "/dev/shm";

/// The value of `?seconds=N`; 30 if it is missing or invalid.
pub(super) fn seconds(query: Option<&str>) -> u64 {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(key, _)| *key == "seconds").find_map(|(_, value)| value.parse().ok());
    value.filter(|seconds| *seconds > 0).unwrap_or(30)
}

/// Samples for this long, then answers with the profile. Only one profile runs at a time; a client that disconnects
/// ends its profile.
pub(super) async fn cpu(seconds: u64) -> Response {
    if seconds > MAX_SECONDS {
        let text =
            format!("a profile takes {MAX_SECONDS} seconds at most, ?seconds={seconds} was asked for\n");
        return error(StatusCode::BAD_REQUEST, text);
    }
    let guard = match start() {
        Ok(guard) => guard,
        Err(reason) => return failed("Could not enable CPU profiling", &reason),
    };
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    // Symbol lookup reads debug information, which may take seconds; other requests must not wait for it.
    match tokio::task::spawn_blocking(move || encode(&guard)).await {
        Ok(Ok(body)) => {
            let mut response = reply(StatusCode::OK, "application/octet-stream", body);
            let disposition = HeaderValue::from_static("attachment; filename=\"profile\"");
            response.headers_mut().insert(CONTENT_DISPOSITION, disposition);
            response
        }
        Ok(Err(reason)) => failed("Could not encode the profile", &reason),
        Err(reason) => failed("Could not encode the profile", &reason),
    }
}

fn start() -> pprof::Result<ProfilerGuard<'static>> {
    let _ = tempfile::env::override_temp_dir(Path::new(SAMPLES));
    // The first sample of a process allocates, because the unwinder loads its tables, and the timer's signal may
    // interrupt an allocation. So this thread takes that sample: it handles the signal before `raise` returns.
    let first = ProfilerGuardBuilder::default().frequency(1).build()?;
    signal::raise(Signal::SIGPROF)?;
    drop(first);
    ProfilerGuardBuilder::default().frequency(FREQUENCY).build()
}

fn failed(what: &str, reason: &dyn std::fmt::Display) -> Response {
    error(StatusCode::INTERNAL_SERVER_ERROR, format!("{what}: {reason}\n"))
}

fn encode(guard: &ProfilerGuard<'_>) -> io::Result<Vec<u8>> {
    let mut profile = guard.report().build().and_then(|report| report.pprof()).map_err(io::Error::other)?;
    say_named(&mut profile);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&profile.encode_to_vec())?;
    gzip.finish()
}

/// Marks all locations as symbolized. Otherwise `go tool pprof BINARY FILE` looks up the addresses in the binary, and
/// there are none.
fn say_named(profile: &mut Profile) {
    let program = std::env::current_exe().unwrap_or_default();
    let filename = i64::try_from(profile.string_table.len()).unwrap_or_default();
    profile.string_table.push(program.display().to_string());
    profile.mapping = vec![Mapping {
        id: 1,
        filename,
        has_functions: true,
        has_filenames: true,
        has_line_numbers: true,
        has_inline_frames: true,
        ..Mapping::default()
    }];
    for location in &mut profile.location {
        location.mapping_id = 1;
    }
}
