//! `konnectivity-sleep SECONDS`: for `preStop` hooks, because the images contain no shell and no `sleep`.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// The program name that starts it.
pub(crate) const NAME: &str = "konnectivity-sleep";

const USAGE: &str = "usage: konnectivity-sleep SECONDS (a whole number)";

/// Waits as long as its only argument says. SIGTERM ends it.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let text = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--help" | "-h"] => format!("{USAGE}\n"),
        ["--version"] => format!("{NAME} {}\n", env!("CARGO_PKG_VERSION")),
        [seconds] if let Ok(seconds) = seconds.parse::<u32>() => {
            #[expect(clippy::disallowed_methods, reason = "this is its purpose")]
            std::thread::sleep(Duration::from_secs(seconds.into()));
            String::new()
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    // The exit status does not depend on whether standard output is still open.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
