//! What `helm test` runs, out of the same images: asks kube-apiserver for the health ports of agents or servers, by the
//! pods' `proxy` subresource. kube-apiserver goes to pods through the tunnel, so the question is itself the test.
//!
//! It talks to kube-apiserver only, reads only, and needs two rights: list pods, get pods/proxy, in one namespace.
//!
//! It is no program of its own: proxy-server and proxy-agent are it under its name ([`is_called`]), so that an image holds the
//! TLS and HTTP of both once.

pub mod check;
pub mod flags;
mod run;
pub mod scrape;

use std::ffi::OsStr;
use std::path::Path;

pub use run::main;

/// The name under which a program of the images is the check.
pub const NAME: &str = "konnectivity-check";

/// Whether a process was started by that name: the first word of its command line, as a path or alone.
pub fn is_called(program: Option<&OsStr>) -> bool {
    program.and_then(|path| Path::new(path).file_name()) == Some(OsStr::new(NAME))
}

#[cfg(test)]
mod tests {
    use super::is_called;

    #[test]
    fn the_name_alone_decides() {
        for path in [
            "/konnectivity-check",
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
