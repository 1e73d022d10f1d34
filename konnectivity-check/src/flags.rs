//! The command line: which pods to check, and for how long.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use commands::Program;
use flags::{Exit, FlagError, FlagSet, GoDuration, one_of, port};

const ABOUT: &str = "asks kube-apiserver, and so the tunnel, how agents or servers are. Exit status 0: all is well. \
    `konnectivity-check compare` compares two servers: `compare --help`. `konnectivity-check status` and the other commands of this \
    program ask it by its admin port.";

flags::flags! {
    /// The options of the check.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Options {
        "Pods to check" {
            /// Program to check: agent or server.
            of: Program = "" => one_of(&[("agent", Program::Agent), ("server", Program::Server)], "give agent or server"),
            /// Namespace of the pods.
            namespace: String = "" => given::<String>("give the namespace of the pods"),
            /// Label selector of the pods: key=value,...
            selector: String = "" => given::<String>("give labels that choose the pods"),
            /// Health port of the pods.
            port: u16 = "0" => port,
            /// Time limit for all pods to become healthy, such as 60s.
            timeout: Duration = "0s" => timeout,
        }
        "kube-apiserver" {
            /// File with the bearer token.
            token_file: PathBuf = "" => given::<PathBuf>("give the path of a token"),
            /// CA certificates for its certificate, PEM.
            ca_file: PathBuf = "" => given::<PathBuf>("give the path of a PEM file"),
            /// Address as host:port. Empty: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
            apiserver: String = "" => apiserver,
        }
    }
}

impl Options {
    /// Parses a command line that starts with the program name. `Exit` is help, version or an error.
    pub(crate) fn parse(line: impl Iterator<Item = OsString>) -> Result<Self, Exit> {
        let set = FlagSet::new(crate::NAME, env!("CARGO_PKG_VERSION"), ABOUT).group::<Self>();
        Ok(set.read(line)?.group()?)
    }
}

fn timeout(flag: &'static str, given: GoDuration) -> Result<Duration, FlagError> {
    match given.or_zero() {
        Duration::ZERO => Err(FlagError::value(flag, given, "give a time above 0, as 60s")),
        timeout => Ok(timeout),
    }
}

fn apiserver(_flag: &'static str, address: String) -> Result<String, FlagError> {
    Ok(if address.is_empty() { in_cluster() } else { address })
}

/// The check of a required value; `fix` is the end of the error if it is empty.
fn given<T: Default + PartialEq>(fix: &'static str) -> impl Fn(&'static str, T) -> Result<T, FlagError> {
    move |flag, value| if value == T::default() { Err(FlagError::empty(flag, fix)) } else { Ok(value) }
}

/// The address of kube-apiserver from the environment that kubelet sets.
fn in_cluster() -> String {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").unwrap_or_else(|_| "kubernetes.default.svc".into());
    let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".into());
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::{Options, Program};

    const LINE: [&str; 8] = [
        "check",
        "--of=server",
        "--namespace=kube-system",
        "--selector=a=b,c=d",
        "--port=8092",
        "--timeout=30s",
        "--token-file=/t",
        "--ca-file=/ca",
    ];

    #[test]
    fn a_line_is_read() {
        let options = Options::parse(LINE.map(Into::into).into_iter()).unwrap();
        assert_eq!((options.of, options.port, options.timeout.as_secs()), (Program::Server, 8092, 30));
        assert_eq!((options.selector.as_str(), options.apiserver.is_empty()), ("a=b,c=d", false));
    }

    #[test]
    fn missing_or_wrong_flags_are_named() {
        for (index, flag) in LINE.iter().enumerate().skip(1) {
            let without =
                LINE.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, word)| (*word).into());
            let exit = Options::parse(without).unwrap_err();
            assert!(exit.stderr.contains(flag.split('=').next().unwrap()), "{exit:?}");
            assert_eq!(exit.stderr.lines().count(), 1, "{exit:?}");
        }
        for wrong in ["--of=client", "--port=0", "--port=65536", "--timeout=60", "--timeout=-1s", "--verbose"]
        {
            let line = LINE.iter().map(|word| (*word).into()).chain([wrong.into()]);
            let exit = Options::parse(line).unwrap_err();
            assert!(exit.stderr.contains(wrong.split('=').next().unwrap()), "{wrong}: {exit:?}");
            assert_eq!((exit.code, exit.stdout.as_str()), (1, ""), "{wrong}");
        }
    }

    #[test]
    fn the_help_names_every_flag() {
        let exit = Options::parse(["check".into(), "--help".into()].into_iter()).unwrap_err();
        let flags = LINE.iter().skip(1).chain(["--apiserver"].iter());
        for flag in flags.map(|flag| flag.split('=').next().unwrap()) {
            assert!(exit.stdout.contains(flag), "{flag}: {}", exit.stdout);
        }
        assert!(exit.stdout.contains("konnectivity-check compare"), "{}", exit.stdout);
        assert_eq!(exit.code, 0);
    }
}
