//! Without an agent nothing works: the opposite of every other case.

use anyhow::{Result, ensure};
use e2e::kube::Output;

use crate::extensions::config_map;
use crate::world::Lane;

/// The answer of a server without an agent: the text by gRPC, the status by HTTP CONNECT.
const ANSWERS: [&str; 2] = ["No agent available", "code 500: 500 Internal Server Error"];

fn refused(output: &Output) -> Result<()> {
    ensure!(output.code.is_some_and(|code| code != 0), "it worked without an agent: {output:?}");
    let said = format!("{}{}", output.text(), output.stderr);
    ensure!(ANSWERS.iter().any(|answer| said.contains(answer)), "it said {said:?}");
    Ok(())
}

/// exec fails.
pub(crate) async fn no_exec(lane: Lane) -> Result<()> {
    refused(&lane.run(&["exec", "app", "-c", "app", "--", "true"]).await?)
}

/// attach fails.
pub(crate) async fn no_attach(lane: Lane) -> Result<()> {
    refused(&lane.run(&["attach", "-i", "app", "-c", "app"]).await?)
}

/// port-forward fails.
pub(crate) async fn no_port_forward(lane: Lane) -> Result<()> {
    refused(&lane.run(&["port-forward", "pod/app", ":80"]).await?)
}

/// The aggregated API is unavailable.
pub(crate) async fn no_aggregated_api(lane: Lane) -> Result<()> {
    let output = lane.run(&["get", "--raw", "/apis/tunnel.example/v1/words"]).await?;
    ensure!(output.code == Some(1), "it worked without an agent: {output:?}");
    ensure!(output.stderr.contains("ServiceUnavailable"), "{output:?}");
    Ok(())
}

/// logs fails.
pub(crate) async fn no_logs(lane: Lane) -> Result<()> {
    std::fs::write(lane.node().log(lane.name(), "app", "app"), "a line\n")?;
    refused(&lane.run(&["logs", "app", "-c", "app"]).await?)
}

/// The proxy to nodes and pods fails.
pub(crate) async fn no_proxy(lane: Lane) -> Result<()> {
    refused(&lane.run(&["get", "--raw", "/api/v1/nodes/node/proxy/healthz"]).await?)?;
    let port = lane.node().web.port();
    let path = format!("/api/v1/namespaces/{}/pods/app:{port}/proxy/", lane.name());
    refused(&lane.run(&["get", "--raw", &path]).await?)
}

/// The webhook is unavailable, and so objects that need it are refused.
pub(crate) async fn no_webhook(lane: Lane) -> Result<()> {
    let output =
        lane.kubectl().run_with(&["create", "-f", "-"], config_map(&lane, "never", false).into()).await?;
    refused(&output)
}
