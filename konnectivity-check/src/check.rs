//! The check: from its command line to its exit status. Repeats the check every second until all pods are healthy or the time is
//! up.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use cluster::client::escaped;
use cluster::config::{Credentials, Pem, Server, TlsFiles};
use cluster::{ApiError, Client, Config};
use flags::Exit;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::flags::{Of, Options};

/// Pause between two checks.
const PAUSE: Duration = Duration::from_secs(1);

/// Time limit of one request; kube-apiserver itself limits a dial through the tunnel to 30 s and usually needs far less.
const PATIENCE: Duration = Duration::from_secs(10);

/// The prefix of all metric names.
const PREFIX: &str = "konnectivity_network_proxy_";

/// Runs the whole check on its own thread and runtime. `line` starts with the program name.
///
/// The report goes to standard output also on failure, because it is the check's result.
pub(crate) fn main(line: impl Iterator<Item = OsString>) -> ExitCode {
    let options = match Options::parse(line) {
        Ok(options) => options,
        Err(exit) => return exit.leave(),
    };
    let exit = match commands::block_on(run(&options)) {
        Ok(Ok(report)) => Exit::show(report),
        Ok(Err(error)) => Exit { code: 1, ..Exit::show(format!("{error:#}\n")) },
        Err(exit) => exit,
    };
    exit.leave()
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

/// A client of the kube-apiserver in the options. It reads its files at each use; a missing file is reported here.
fn client(options: &Options) -> Result<Client> {
    for file in [&options.ca_file, &options.token_file] {
        std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    let server = Server::parse(&format!("https://{}", options.apiserver))
        .map_err(|why| anyhow!("--apiserver is not host:port: {why}"))?;
    let config = Config {
        server,
        tls: TlsFiles { ca: Some(Pem::File(options.ca_file.clone())), ..TlsFiles::default() },
        credentials: Credentials::TokenFile(options.token_file.clone()),
        proxy: None,
    };
    Ok(Client::new(config, crate::NAME, 0.0, 0))
}

/// Checks every running pod once; returns the report if all pods are healthy, otherwise an error with the whole report.
async fn look(api: &Client, options: &Options) -> Result<String> {
    let names = pods(api, options).await?;
    let (mut report, mut wrong, mut carried) = (String::new(), 0, 0.0);
    for name in &names {
        match pod(api, options, name).await {
            Ok(health) => {
                carried += health.carried;
                let _ = writeln!(report, "ok    {name}: {}", health.text);
            }
            Err(error) => {
                wrong += 1;
                let _ = writeln!(report, "WRONG {name}: {error:#}");
            }
        }
    }
    if wrong == 0 && options.of == Of::Agent && carried == 0.0 {
        bail!(
            "{report}WRONG no agent carries these requests: kube-apiserver reaches pods without the tunnel, look at its \
             --egress-selector-config-file"
        );
    }
    ensure!(wrong == 0, "{report}{wrong} of {} pods are not well", names.len());
    Ok(report)
}

/// The names of the running pods that the selector matches.
async fn pods(api: &Client, options: &Options) -> Result<Vec<String>> {
    let namespace = &options.namespace;
    let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector={}", escaped(&options.selector));
    let list = api.get(&path, PATIENCE).await.context("cannot list pods")?;
    let list: Value = serde_json::from_slice(&list).context("kube-apiserver's list of pods is not JSON")?;
    let running =
        |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<String> = items
        .iter()
        .filter(running)
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .map(str::to_owned)
        .collect();
    ensure!(!names.is_empty(), "no running pod in namespace {namespace} has the labels {}", options.selector);
    Ok(names)
}

/// A healthy pod.
struct PodHealth {
    text: String,
    /// Endpoint connections that it carries or has carried.
    carried: f64,
}

async fn pod(api: &Client, options: &Options, name: &str) -> Result<PodHealth> {
    let base = format!("/api/v1/namespaces/{}/pods/{name}:{}/proxy", options.namespace, options.port);
    page(api, &base, "/readyz").await?;
    let metrics = page(api, &base, "/metrics").await?;
    judge(options.of, &String::from_utf8_lossy(&metrics))
}

async fn page(api: &Client, base: &str, name: &str) -> Result<Bytes> {
    api.get(&format!("{base}{name}"), PATIENCE).await.map_err(|error| match error {
        ApiError::Status { code, message, .. } => anyhow!("{name} says {code}: {message}"),
        error => anyhow!("{name}: {error}"),
    })
}

fn judge(of: Of, scrape: &str) -> Result<PodHealth> {
    let value = |name: &str| sum(scrape, &format!("{PREFIX}{name}"));
    match of {
        Of::Agent => {
            let known = value("agent_known_server_count").context("/metrics is not that of an agent")?;
            let open = value("agent_open_server_connections").unwrap_or(0.0);
            ensure!(open >= known, "it has {open} of {known} servers");
            let carried = value("agent_open_endpoint_connections").unwrap_or(0.0);
            Ok(PodHealth { text: format!("ready, {open} of {known} servers"), carried })
        }
        Of::Server => {
            let agents = value("server_ready_backends").context("/metrics is not that of a server")?;
            ensure!(agents > 0.0, "it has no agent");
            let streams = value("server_grpc_connections").unwrap_or(0.0);
            Ok(PodHealth { text: format!("ready, {streams} streams"), carried: 0.0 })
        }
    }
}

/// The sum over all samples of a family, whatever their labels; `None` if there is none.
fn sum(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    });
    values.reduce(|sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::{judge, sum};
    use crate::flags::Of;

    const P: &str = "konnectivity_network_proxy_";

    #[test]
    fn an_agent_with_all_its_servers_is_well() {
        let scrape = format!(
            "{P}agent_known_server_count 2\n{P}agent_open_server_connections 2\n{P}agent_open_endpoint_connections 3\n"
        );
        let health = judge(Of::Agent, &scrape).unwrap();
        assert_eq!((health.text.as_str(), health.carried), ("ready, 2 of 2 servers", 3.0));
    }

    #[test]
    fn an_agent_that_misses_a_server_or_never_had_one_is_not() {
        for open in ["", &format!("{P}agent_open_server_connections 1\n")] {
            let error = judge(Of::Agent, &format!("{P}agent_known_server_count 2\n{open}")).err().unwrap();
            assert!(error.to_string().contains("of 2 servers"), "{error}");
        }
    }

    #[test]
    fn a_server_without_agents_is_not_well() {
        let none = format!("{P}server_ready_backends{{proxy_strategy=\"default\"}} 0\n");
        assert!(judge(Of::Server, &none).err().unwrap().to_string().contains("no agent"));
        assert!(judge(Of::Server, &none.replace(" 0", " 1")).is_ok());
    }

    #[test]
    fn another_programs_metrics_are_refused() {
        for of in [Of::Agent, Of::Server] {
            assert!(judge(of, "process_open_fds 3\n").err().unwrap().to_string().contains("not that of"));
        }
    }

    #[test]
    fn families_are_distinguished_and_summed() {
        let text = "# TYPE a gauge\na 2\na_total 9\nb{x=\"1\"} 1\nb{x=\"2 3\"} 4.5\nc nonsense\n";
        assert_eq!((sum(text, "a"), sum(text, "b")), (Some(2.0), Some(5.5)));
        assert_eq!((sum(text, "c"), sum(text, "d"), sum(text, "")), (None, None, None));
    }
}
