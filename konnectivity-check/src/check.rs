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
use commands::Program;
use flags::Exit;
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::flags::Options;

/// Pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit of one request; kube-apiserver itself limits a dial through the tunnel to 30 s and usually needs far less.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Pods of one list: a pod has some 12 KiB, and the client accepts answers of 16 MiB.
const PODS_PER_PAGE: usize = 500;

/// Pods that are asked at once.
const MAX_CONCURRENT_PODS: usize = 16;

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
    let exit = match commands::block_on(async { run(&client(&options)?, &options).await }) {
        Ok(Ok(report)) => Exit::show(report),
        Ok(Err(error)) => Exit { code: 1, ..Exit::show(format!("{error:#}\n")) },
        Err(exit) => exit,
    };
    exit.leave()
}

async fn run(api: &Client, options: &Options) -> Result<String> {
    let (end, mut complete) = (Instant::now() + options.timeout, None);
    loop {
        match check_pods(api, options, end).await {
            // A look that `end` cut off says less than one before it.
            Err(error) if Instant::now() >= end => return Err(complete.unwrap_or(error)),
            Err(error) if Instant::now() + CHECK_INTERVAL >= end => return Err(error),
            Err(error) => complete = Some(error),
            well => return well,
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// A client of the kube-apiserver in the options. It reads its files at each use; a missing file is reported here.
fn client(options: &Options) -> Result<Client> {
    for file in [&options.ca_file, &options.token_file] {
        std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    let server = Server::parse(&format!("https://{}", options.apiserver), "https")
        .map_err(|why| anyhow!("--apiserver is not host:port: {why}"))?;
    let config = Config {
        server,
        tls: TlsFiles { ca: Some(Pem::File(options.ca_file.clone())), ..TlsFiles::default() },
        credentials: Credentials::TokenFile(options.token_file.clone()),
        proxy: None,
    };
    Ok(Client::new(config, crate::NAME, 0.0, 0))
}

/// Checks every running pod once; returns the report if all pods are healthy, otherwise an error with the whole report. A pod that
/// has not answered by `end` is not healthy.
async fn check_pods(api: &Client, options: &Options, end: Instant) -> Result<String> {
    let names = timeout_at(end, pods(api, options)).await.context("cannot list pods within --timeout")??;
    let (mut report, mut wrong, mut carried) = (String::new(), 0, 0.0);
    let asked = stream::iter(&names).map(|name| async move {
        let health = timeout_at(end, pod(api, options, name)).await;
        (name, health.unwrap_or_else(|_| Err(anyhow!("no answer within --timeout"))))
    });
    let mut asked = asked.buffered(MAX_CONCURRENT_PODS);
    while let Some((name, health)) = asked.next().await {
        match health {
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
    if wrong == 0 && options.of == Program::Agent && carried == 0.0 {
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
    let running =
        |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
    let (selector, mut names, mut next) = (escaped(&options.selector).to_string(), Vec::new(), String::new());
    loop {
        let query = format!("labelSelector={selector}&limit={PODS_PER_PAGE}&continue={}", escaped(&next));
        let list = api.get(&format!("/api/v1/namespaces/{namespace}/pods?{query}"), REQUEST_TIMEOUT).await;
        let list: Value = serde_json::from_slice(&list.context("cannot list pods")?)
            .context("kube-apiserver's list of pods is not JSON")?;
        let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        let found = items.iter().filter(running).filter_map(|pod| pod["metadata"]["name"].as_str());
        names.extend(found.map(str::to_owned));
        list["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut next);
        if next.is_empty() {
            break;
        }
    }
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
    api.get(&format!("{base}{name}"), REQUEST_TIMEOUT).await.map_err(|error| match error {
        ApiError::Status { code, message, .. } => anyhow!("{name} says {code}: {message}"),
        error => anyhow!("{name}: {error}"),
    })
}

fn judge(of: Program, scrape: &str) -> Result<PodHealth> {
    let value = |name: &str| sum(scrape, &format!("{PREFIX}{name}"));
    match of {
        Program::Agent => {
            let known = value("agent_known_server_count").context("/metrics is not that of an agent")?;
            let open = value("agent_open_server_connections").unwrap_or(0.0);
            ensure!(open >= known, "it has {open} of {known} servers");
            let carried = value("agent_open_endpoint_connections").unwrap_or(0.0);
            Ok(PodHealth { text: format!("ready, {open} of {known} servers"), carried })
        }
        Program::Server => {
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    const P: &str = "konnectivity_network_proxy_";

    /// A kube-apiserver; `answer` maps a path to an answer, or to none.
    async fn api(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::parse(&listener.local_addr().unwrap().to_string(), "http").unwrap();
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while let Ok(byte) = stream.read_u8().await {
                        head.push(byte);
                        if !head.ends_with(b"\r\n\r\n") {
                            continue;
                        }
                        let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
                        let Some(body) = answer(text.split(' ').nth(1).unwrap()) else { continue };
                        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                        stream.write_all(text.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        let (tls, credentials) = (TlsFiles::default(), Credentials::None);
        Client::new(Config { server, tls, credentials, proxy: None }, crate::NAME, 0.0, 0)
    }

    fn options(timeout: &str) -> Options {
        let line = ["check", "--of=server", "--namespace=n", "--selector=a=b", "--port=1", "--token-file=/t"];
        let line = line.into_iter().chain(["--ca-file=/ca", timeout]);
        Options::parse(line.map(Into::into)).unwrap()
    }

    fn list(names: &[&str], next: &str) -> String {
        let running =
            |name| serde_json::json!({ "metadata": { "name": name }, "status": { "phase": "Running" } });
        let items: Vec<_> = names.iter().map(running).collect();
        serde_json::json!({ "metadata": { "continue": next }, "items": items }).to_string()
    }

    const WELL: &str = "konnectivity_network_proxy_server_ready_backends 1\n";

    #[tokio::test]
    async fn a_long_list_is_read_in_pages() {
        let api = api(|path| match path.split_once("&limit=500&continue=") {
            Some((_, "")) => Some(list(&["a"], "x/y")),
            Some((_, "x%2Fy")) => Some(list(&["b"], "")),
            _ => Some(WELL.to_owned()),
        });
        let report = run(&api.await, &options("--timeout=20s")).await.unwrap();
        assert_eq!(report, "ok    a: ready, 0 streams\nok    b: ready, 0 streams\n");
    }

    #[tokio::test]
    async fn pods_that_do_not_answer_are_reported_in_time() {
        let api = api(|path| {
            let silent = ["a"; 20];
            if path.contains("/pods?") {
                Some(list(&[&["well"][..], &silent].concat(), ""))
            } else {
                Some(WELL.to_owned()).filter(|_| path.contains("well"))
            }
        });
        let (api, options) = (api.await, options("--timeout=2s"));
        let checked = timeout(Duration::from_secs(8), run(&api, &options));
        let report = checked.await.expect("in time").unwrap_err().to_string();
        assert!(report.starts_with("ok    well: ready, 0 streams\n"), "{report}");
        assert!(report.ends_with("\n20 of 21 pods are not well"), "{report}");
    }

    #[tokio::test]
    async fn a_look_that_is_cut_off_does_not_replace_the_report_before_it() {
        let listed = AtomicBool::new(false);
        let api = api(move |path| {
            if !path.contains("/pods?") {
                return Some(WELL.replace('1', "0"));
            }
            Some(list(&["a"], "")).filter(|_| !listed.swap(true, Ordering::Relaxed))
        });
        let report = run(&api.await, &options("--timeout=2s")).await.unwrap_err().to_string();
        assert_eq!(report, "WRONG a: it has no agent\n1 of 1 pods are not well");
    }

    #[test]
    fn an_agent_with_all_its_servers_is_well() {
        let scrape = format!(
            "{P}agent_known_server_count 2\n{P}agent_open_server_connections 2\n{P}agent_open_endpoint_connections 3\n"
        );
        let health = judge(Program::Agent, &scrape).unwrap();
        assert_eq!((health.text.as_str(), health.carried), ("ready, 2 of 2 servers", 3.0));
    }

    #[test]
    fn an_agent_that_misses_a_server_or_never_had_one_is_not() {
        for open in ["", &format!("{P}agent_open_server_connections 1\n")] {
            let error =
                judge(Program::Agent, &format!("{P}agent_known_server_count 2\n{open}")).err().unwrap();
            assert!(error.to_string().contains("of 2 servers"), "{error}");
        }
    }

    #[test]
    fn a_server_without_agents_is_not_well() {
        let none = format!("{P}server_ready_backends{{proxy_strategy=\"default\"}} 0\n");
        assert!(judge(Program::Server, &none).err().unwrap().to_string().contains("no agent"));
        assert!(judge(Program::Server, &none.replace(" 0", " 1")).is_ok());
    }

    #[test]
    fn another_programs_metrics_are_refused() {
        for of in [Program::Agent, Program::Server] {
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
