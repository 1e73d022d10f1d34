//! The check that `helm test` runs from the same images: it asks kube-apiserver for the health ports of agents or servers by
//! the pods' `proxy` subresource. kube-apiserver connects to pods through the tunnel, so the request itself tests the tunnel.
//!
//! It connects only to kube-apiserver, only reads, and needs two rights in one namespace: list pods, and get pods/proxy.
//!
//! It has no program of its own: proxy-server and proxy-agent run it when they are started under its name ([`is_called`]), so
//! that an image contains TLS and HTTP only once.

pub mod check;
pub mod flags;
mod run;
pub mod scrape;

use std::ffi::OsStr;
use std::path::Path;

pub use run::main;

/// The program name that starts the check.
pub const NAME: &str = "konnectivity-check";

/// Whether the process was started under that name: the first word of its command line, with or without a path.
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
