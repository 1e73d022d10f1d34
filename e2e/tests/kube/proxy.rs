//! kube-apiserver as an HTTP proxy to nodes, pods and services.

use anyhow::{Context, Result, ensure};
use e2e::payload::Payload;

use crate::world::Lane;

/// The node's health, metrics and statistics.
pub(crate) async fn nodes(lane: Lane) -> Result<()> {
    let get =
        async |path: &str| lane.ok(&["get", "--raw", &format!("/api/v1/nodes/node/proxy/{path}")]).await;
    ensure!(get("healthz").await? == "ok");
    ensure!(get("metrics").await?.contains("# TYPE kubelet_requests_total counter"));
    let stats: serde_json::Value = serde_json::from_str(&get("stats/summary").await?)?;
    ensure!(stats["node"]["nodeName"] == "node", "{stats}");
    Ok(())
}

/// A pod's web server: a page, a response of 16 MB, and a request body of 5 MB that is echoed.
pub(crate) async fn pods(lane: Lane) -> Result<()> {
    let base = format!("/api/v1/namespaces/{}/pods/app:{}/proxy", lane.name(), lane.node().web.port());
    web(&lane, &base).await?;
    let mut body = Vec::new();
    Payload::new(6, 5_000_000).send(&mut body).await?;
    let file = lane.scratch().join("body");
    std::fs::write(&file, &body)?;
    let file = file.to_str().context("a path that is not text")?;
    let output = lane.run(&["create", "--raw", &format!("{base}/echo"), "-f", file]).await?;
    ensure!(output.code == Some(0), "{}", output.stderr);
    Payload::new(6, 5_000_000).check(&output.digest())
}

/// The same server by its service's name.
pub(crate) async fn services(lane: Lane) -> Result<()> {
    web(&lane, &format!("/api/v1/namespaces/{}/services/web:http/proxy", lane.name())).await
}

async fn web(lane: &Lane, base: &str) -> Result<()> {
    let page = lane.ok(&["get", "--raw", &format!("{base}/")]).await?;
    ensure!(page == "hello from the pod\n", "{page:?}");
    let bytes = lane.ok(&["get", "--raw", &format!("{base}/bytes/16000000")]).await?;
    ensure!(bytes.len() == 16_000_000 && bytes.bytes().all(|byte| byte == b'x'), "{} bytes", bytes.len());
    Ok(())
}
