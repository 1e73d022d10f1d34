//! Without an agent nothing goes through: the negative of every other case.

use anyhow::{Result, ensure};
use e2e::kube::Output;

use crate::extensions::config_map;
use crate::world::Lane;

/// What kube-apiserver hears from a server that has no agent: the text by gRPC, the status by HTTP CONNECT.
const ANSWERS: [&str; 2] = ["No agent available", "code 500: 500 Internal Server Error"];

fn refused(output: &Output) -> Result<()> {
    ensure!(output.code.is_some_and(|code| code != 0), "it worked without an agent: {output:?}");
    let said = format!("{}{}", output.text(), output.stderr);
    ensure!(ANSWERS.iter().any(|answer| said.contains(answer)), "it said {said:?}");
    Ok(())
}

/// No exec.
pub(crate) async fn no_exec(lane: Lane) -> Result<()> {
    refused(&lane.run(&["exec", "app", "-c", "app", "--", "true"]).await?)
}

/// No attach.
pub(crate) async fn no_attach(lane: Lane) -> Result<()> {
    refused(&lane.run(&["attach", "-i", "app", "-c", "app"]).await?)
}

/// No port-forward.
pub(crate) async fn no_port_forward(lane: Lane) -> Result<()> {
    refused(&lane.run(&["port-forward", "pod/app", ":80"]).await?)
}

/// No aggregated API.
pub(crate) async fn no_aggregated_api(lane: Lane) -> Result<()> {
    let output = lane.run(&["get", "--raw", "/apis/tunnel.example/v1/words"]).await?;
    ensure!(output.code == Some(1), "it worked without an agent: {output:?}");
    ensure!(output.stderr.contains("ServiceUnavailable"), "{output:?}");
    Ok(())
}

/// No logs.
pub(crate) async fn no_logs(lane: Lane) -> Result<()> {
    std::fs::write(lane.node().log(lane.name(), "app", "app"), "a line\n")?;
    refused(&lane.run(&["logs", "app", "-c", "app"]).await?)
}

/// No proxy to nodes and pods.
pub(crate) async fn no_proxy(lane: Lane) -> Result<()> {
    refused(&lane.run(&["get", "--raw", "/api/v1/nodes/node/proxy/healthz"]).await?)?;
    let port = lane.node().web.port();
    let path = format!("/api/v1/namespaces/{}/pods/app:{port}/proxy/", lane.name());
    refused(&lane.run(&["get", "--raw", &path]).await?)
}

/// No webhook, and so no object that it must be asked about.
pub(crate) async fn no_webhook(lane: Lane) -> Result<()> {
    let output =
        lane.kubectl().run_with(&["create", "-f", "-"], config_map(&lane, "never", false).into()).await?;
    refused(&output)
}
