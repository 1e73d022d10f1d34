//! The command line: which pods to check, and for how long.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use flags::{Exit, FlagError, FlagSet, GoDuration, port};

const ABOUT: &str =
    "asks kube-apiserver, and so the tunnel, how agents or servers are. Exit status 0: all is well.";

/// The program to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// proxy-agents: ready, and with a stream to every known server.
    Agent,
    /// proxy-servers: ready, and with at least one agent.
    Server,
}

/// The checked options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The program to check.
    pub of: Of,
    /// The pods' namespace.
    pub namespace: String,
    /// A label selector for the pods.
    pub selector: String,
    /// The pods' health port.
    pub port: u16,
    /// Time limit for all pods to become healthy.
    pub timeout: Duration,
    /// A file with the bearer token for kube-apiserver.
    pub token_file: PathBuf,
    /// Certificate authorities for kube-apiserver's certificate, PEM.
    pub ca_file: PathBuf,
    /// kube-apiserver's host and port.
    pub apiserver: String,
}

impl Options {
    /// Parses a command line that starts with the program name. `Exit` is help, version or an error.
    pub fn parse(line: impl Iterator<Item = OsString>) -> Result<Self, Exit> {
        let mut raw = RawFlags::default();
        let mut set = FlagSet::new(crate::NAME, env!("CARGO_PKG_VERSION"), ABOUT);
        raw.register(&mut set);
        set.read(line)?;
        Ok(raw.check()?)
    }
}

/// The flags as written on the command line.
#[derive(Debug, Default)]
struct RawFlags {
    of: String,
    namespace: String,
    selector: String,
    port: i64,
    timeout: GoDuration,
    token_file: OsString,
    ca_file: OsString,
    apiserver: String,
}

impl RawFlags {
    fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Pods to check");
        set.add("of", &mut self.of, "Program to check: agent or server.");
        set.add("namespace", &mut self.namespace, "Namespace of the pods.");
        set.add("selector", &mut self.selector, "Label selector of the pods: key=value,...");
        set.add("port", &mut self.port, "Health port of the pods.");
        set.add("timeout", &mut self.timeout, "Time limit for all pods to become healthy, such as 60s.");
        set.heading("kube-apiserver");
        set.add("token-file", &mut self.token_file, "File with the bearer token.");
        set.add("ca-file", &mut self.ca_file, "CA certificates for its certificate, PEM.");
        set.add(
            "apiserver",
            &mut self.apiserver,
            "Address as host:port. Empty: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.",
        );
    }

    fn check(self) -> Result<Options, FlagError> {
        let of = match given("of", self.of, "agent or server")?.as_str() {
            "agent" => Of::Agent,
            "server" => Of::Server,
            other => return Err(FlagError::value("of", other, "give agent or server")),
        };
        let namespace = given("namespace", self.namespace, "give the namespace of the pods")?;
        let selector = given("selector", self.selector, "give labels that choose the pods")?;
        let port = port("port", self.port)?;
        let timeout = self.timeout.or_zero();
        if timeout.is_zero() {
            return Err(FlagError::value("timeout", self.timeout, "give a time above 0, as 60s"));
        }
        let token_file = given("token-file", self.token_file, "give the path of a token")?.into();
        let ca_file = given("ca-file", self.ca_file, "give the path of a PEM file")?.into();
        let apiserver = if self.apiserver.is_empty() { in_cluster() } else { self.apiserver };
        Ok(Options { of, namespace, selector, port, timeout, token_file, ca_file, apiserver })
    }
}

/// Returns a required value, or an error if it is not set.
fn given<T: Default + PartialEq>(flag: &'static str, value: T, fix: &'static str) -> Result<T, FlagError> {
    if value == T::default() { Err(FlagError::Empty { flag, fix }) } else { Ok(value) }
}

/// The address of kube-apiserver from the environment that kubelet sets.
fn in_cluster() -> String {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").unwrap_or_else(|_| "kubernetes.default.svc".into());
    let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".into());
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
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
        let options = Options::parse(LINE.map(Into::into).into_iter()).unwrap();
        assert_eq!((options.of, options.port, options.timeout.as_secs()), (Of::Server, 8092, 30));
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
        assert_eq!(exit.code, 0);
    }
}
