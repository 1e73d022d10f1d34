//! Runs the check from its command line to its exit status. Repeats it every second until all pods are healthy or the time is
//! up.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};

use crate::check::{client, look};
use crate::flags::Options;

/// Pause between two checks.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the whole check on its own thread and runtime. `line` starts with the program name.
///
/// The report goes to standard output also on failure, because it is the check's result.
pub(crate) fn main(line: impl Iterator<Item = OsString>) -> ExitCode {
    let options = match Options::parse(line) {
        Ok(options) => options,
        Err(exit) => return exit.leave(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let looked =
        runtime.context("cannot start the runtime").and_then(|runtime| runtime.block_on(run(&options)));
    let (report, code) = match looked {
        Ok(report) => (report, ExitCode::SUCCESS),
        Err(error) => (format!("{error:#}\n"), ExitCode::FAILURE),
    };
    // The exit status does not depend on whether standard output is still open.
    let _ = std::io::stdout().write_all(report.as_bytes());
    code
}

async fn run(options: &Options) -> Result<String> {
    let api = client(options)?;
    let end = Instant::now() + options.timeout;
    loop {
        match look(&api, options).await {
            Err(error) if Instant::now() + PAUSE >= end => return Err(error),
            Err(_) => sleep(PAUSE).await,
            well => return well,
        }
    }
}
