//! The command line: what to ask, whom, and for how long.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, value_parser};

/// Which half is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// proxy-agents: ready, and with a stream to every server that they know.
    Agent,
    /// proxy-servers: ready, and with an agent.
    Server,
}

/// Everything that the check is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which half.
    pub of: Of,
    /// The pods' namespace.
    pub namespace: String,
    /// A label selector that chooses the pods.
    pub selector: String,
    /// Their health port.
    pub port: u16,
    /// How long they may take to be well.
    pub timeout: Duration,
    /// A bearer token for kube-apiserver.
    pub token_file: PathBuf,
    /// The authorities of kube-apiserver's certificate, PEM.
    pub ca_file: PathBuf,
    /// kube-apiserver's host and port.
    pub apiserver: String,
}

impl Options {
    /// Reads a command line; an error is a message for the user, `--help`'s text included.
    pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let command = command();
        let mut matches = command.try_get_matches_from(line)?;
        let mut text = |name: &str| matches.remove_one::<String>(name).unwrap_or_default();
        let of = if text("of") == "server" { Of::Server } else { Of::Agent };
        let (namespace, selector) = (text("namespace"), text("selector"));
        let apiserver = matches.remove_one("apiserver").unwrap_or_else(in_cluster);
        let port = matches.remove_one("port").unwrap_or_default();
        let timeout = matches.remove_one("timeout").unwrap_or_default();
        let mut path = |name: &str| matches.remove_one::<PathBuf>(name).unwrap_or_default();
        let (token_file, ca_file) = (path("token-file"), path("ca-file"));
        Ok(Self { of, namespace, selector, port, timeout, token_file, ca_file, apiserver })
    }
}

fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).required(true).help(help);
    Command::new("konnectivity-check")
        .about(
            "Asks kube-apiserver, and so the tunnel, how agents or servers are. Exit status 0: all is well.",
        )
        .arg(flag("of", "Which half").value_parser(PossibleValuesParser::new(["agent", "server"])))
        .arg(flag("namespace", "Namespace of the pods"))
        .arg(flag("selector", "Labels that choose the pods, as key=value,..."))
        .arg(flag("port", "Their health port").value_parser(value_parser!(u16).range(1..)))
        .arg(flag("timeout", "Time to be well, as 60s").value_parser(seconds))
        .arg(flag("token-file", "Bearer token for kube-apiserver").value_parser(value_parser!(PathBuf)))
        .arg(flag("ca-file", "Authorities of its certificate, PEM").value_parser(value_parser!(PathBuf)))
        .arg(flag("apiserver", "Its host:port; else KUBERNETES_SERVICE_HOST and _PORT").required(false))
}

/// Where kubelet says that kube-apiserver is.
fn in_cluster() -> String {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").unwrap_or_else(|_| "kubernetes.default.svc".into());
    let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".into());
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').and_then(|number| number.parse().ok());
    number.map(Duration::from_secs).ok_or_else(|| format!("{text:?} is no number of seconds, write 60s"))
}

#[cfg(test)]
mod tests {
    use super::{Of, Options};

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
        let options = Options::parse(LINE.map(Into::into)).unwrap();
        assert_eq!((options.of, options.port, options.timeout.as_secs()), (Of::Server, 8092, 30));
        assert_eq!((options.selector.as_str(), options.apiserver.is_empty()), ("a=b,c=d", false));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (index, flag) in LINE.iter().enumerate().skip(1) {
            let without =
                LINE.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, word)| (*word).into());
            let error = Options::parse(without).unwrap_err().to_string();
            assert!(error.contains(flag.split('=').next().unwrap()), "{error}");
        }
        for wrong in ["--of=client", "--port=0", "--timeout=1m", "--verbose"] {
            let error = Options::parse(LINE.iter().map(|word| (*word).into()).chain([wrong.into()]));
            assert!(error.is_err(), "{wrong} is taken");
        }
    }
}
