//! The check that `helm test` runs from the same images: it asks kube-apiserver for the health ports of agents or servers by
//! the pods' `proxy` subresource. kube-apiserver connects to pods through the tunnel, so the request itself tests the tunnel.
//!
//! It connects only to kube-apiserver, only reads, and needs two rights in one namespace: list pods, and get pods/proxy.
//!
//! `konnectivity-check compare` (`compare`) dials the same targets through two servers, and says whether they do the same.
//!
//! `konnectivity-check status`, `probe`, `top` and `verbosity` are the commands of the program whose image contains it.
//!
//! It has no program of its own: proxy-server and proxy-agent run it when they are started under its name ([`is_called`]), so
//! that an image contains TLS and HTTP only once. In the same way they run `sleep`, for hooks in images without a shell.

mod check;
mod compare;
mod flags;
mod sleep;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// The program name that starts the check.
pub const NAME: &str = "konnectivity-check";

/// Whether the process was started under the name of the check or of `sleep`: the first word of its command line, with or
/// without a path.
pub fn is_called(program: Option<&OsStr>) -> bool {
    is_named(program, NAME) || is_named(program, sleep::NAME)
}

fn is_named(program: Option<&OsStr>, name: &str) -> bool {
    program.and_then(|path| Path::new(path).file_name()) == Some(OsStr::new(name))
}

/// Runs the program that the first word of the command line names. `program` is the one that contains it.
pub fn main(program: commands::Program, line: impl Iterator<Item = OsString>) -> ExitCode {
    let line: Vec<OsString> = line.collect();
    if is_named(line.first().map(OsString::as_os_str), sleep::NAME) {
        return sleep::main(line.into_iter().skip(1));
    }
    if line.get(1).is_some_and(|word| word == compare::COMMAND) {
        return compare::main(line.into_iter().skip(1));
    }
    commands::main(program, line.iter().cloned()).unwrap_or_else(|| check::main(line.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::is_called;

    #[test]
    fn the_name_alone_decides() {
        for path in [
            "/konnectivity-check",
            "/konnectivity-sleep",
            "konnectivity-check",
            "/usr/bin/konnectivity-check",
            "./konnectivity-check",
        ] {
            assert!(is_called(Some(path.as_ref())), "{path}");
        }
        for path in ["/proxy-agent", "", "/", "/konnectivity-check/proxy-agent", "konnectivity-check.sh"] {
            assert!(!is_called(Some(path.as_ref())), "{path}");
        }
        assert!(!is_called(None));
    }
}
