//! One look at all pods, and what it means.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::api::Api;
use crate::flags::{Of, Options};
use crate::scrape::sum;

/// What a label selector may keep in a query.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Prefix of all families.
const PREFIX: &str = "konnectivity_network_proxy_";

/// Looks once at every running pod; the report if all is well, an error with the whole report otherwise.
pub async fn look(api: &Api, options: &Options) -> Result<String> {
    let names = pods(api, options).await?;
    let (mut report, mut wrong, mut carried) = (String::new(), 0, 0.0);
    for name in &names {
        match pod(api, options, name).await {
            Ok(verdict) => {
                carried += verdict.carried;
                let _ = writeln!(report, "ok    {name}: {}", verdict.text);
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

/// The names of the running pods that the selector chooses.
async fn pods(api: &Api, options: &Options) -> Result<Vec<String>> {
    let selector = utf8_percent_encode(&options.selector, QUERY);
    let namespace = &options.namespace;
    let answer = api.get(&format!("/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")).await?;
    ensure!(answer.status.is_success(), "kube-apiserver lists no pods: {}", brief(&answer.body));
    let list: Value = serde_json::from_slice(&answer.body).context("kube-apiserver's list is no JSON")?;
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

/// A pod that is well.
struct Verdict {
    text: String,
    /// Connections to endpoints that it carries or has carried.
    carried: f64,
}

async fn pod(api: &Api, options: &Options, name: &str) -> Result<Verdict> {
    let base = format!("/api/v1/namespaces/{}/pods/{name}:{}/proxy", options.namespace, options.port);
    let ready = api.get(&format!("{base}/readyz")).await?;
    ensure!(ready.status.is_success(), "/readyz says {}: {}", ready.status.as_u16(), brief(&ready.body));
    let metrics = api.get(&format!("{base}/metrics")).await?;
    ensure!(
        metrics.status.is_success(),
        "/metrics says {}: {}",
        metrics.status.as_u16(),
        brief(&metrics.body)
    );
    judge(options.of, &String::from_utf8_lossy(&metrics.body))
}

fn judge(of: Of, scrape: &str) -> Result<Verdict> {
    let value = |name: &str| sum(scrape, &format!("{PREFIX}{name}"));
    match of {
        Of::Agent => {
            let known = value("agent_known_server_count").context("/metrics is not that of an agent")?;
            let open = value("agent_open_server_connections").unwrap_or(0.0);
            ensure!(open >= known, "it has {open} of {known} servers");
            let carried = value("agent_open_endpoint_connections").unwrap_or(0.0);
            Ok(Verdict { text: format!("ready, {open} of {known} servers"), carried })
        }
        Of::Server => {
            let agents = value("server_ready_backends").context("/metrics is not that of a server")?;
            ensure!(agents > 0.0, "it has no agent");
            let streams = value("server_grpc_connections").unwrap_or(0.0);
            Ok(Verdict { text: format!("ready, {streams} streams"), carried: 0.0 })
        }
    }
}

/// A body for a message: 300 characters at most, nothing that a terminal obeys.
fn brief(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let shown = text.trim().chars().take(300);
    shown.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::judge;
    use crate::flags::Of;

    const P: &str = "konnectivity_network_proxy_";

    #[test]
    fn an_agent_with_all_its_servers_is_well() {
        let scrape = format!(
            "{P}agent_known_server_count 2\n{P}agent_open_server_connections 2\n{P}agent_open_endpoint_connections 3\n"
        );
        let verdict = judge(Of::Agent, &scrape).unwrap();
        assert_eq!((verdict.text.as_str(), verdict.carried), ("ready, 2 of 2 servers", 3.0));
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
}
