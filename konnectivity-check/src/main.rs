//! `konnectivity-check`: see the library. Looks again every second until all is well or the time is up.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use konnectivity_check::api::Api;
use konnectivity_check::check::look;
use konnectivity_check::flags::Options;
use tokio::time::{Instant, sleep};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args_os()) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let looked =
        runtime.context("cannot start the runtime").and_then(|runtime| runtime.block_on(run(&options)));
    match looked {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<String> {
    let api = Api::new(options)?;
    let end = Instant::now() + options.timeout;
    loop {
        match look(&api, options).await {
            Err(error) if Instant::now() + PAUSE >= end => return Err(error),
            Err(_) => sleep(PAUSE).await,
            well => return well,
        }
    }
}
