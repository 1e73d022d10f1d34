//! Extensions of a kube-apiserver behind the tunnel: a validating webhook and an aggregated API.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::wait::until;
use serde_json::json;
use tokio::time::sleep;

use crate::world::Lane;

/// kube-apiserver checks an unavailable API at growing intervals.
const AVAILABLE: Duration = Duration::from_secs(90);

/// Pause between two expensive checks.
const PAUSE: Duration = Duration::from_secs(1);

/// The manifest of an object for which the webhook is called.
pub(crate) fn config_map(lane: &Lane, name: &str, refused: bool) -> String {
    let labels = if refused { json!({ "validated": "", "refuse": "" }) } else { json!({ "validated": "" }) };
    let metadata = json!({ "name": name, "namespace": lane.name(), "labels": labels });
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata }).to_string()
}

/// One object passes, another is refused with the webhook's text.
pub(crate) async fn webhook(lane: Lane) -> Result<()> {
    let create = ["create", "-f", "-"];
    let args = lane.args(&["delete", "configmap", "good", "--ignore-not-found"]);
    lane.kubectl().ok(&args.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    lane.kubectl().ok_with(&create, config_map(&lane, "good", false).into()).await?;
    let output = lane.kubectl().run_with(&create, config_map(&lane, "bad", true).into()).await?;
    ensure!(output.code == Some(1), "{output:?}");
    ensure!(output.stderr.contains("refused by the webhook behind the tunnel"), "{output:?}");
    Ok(())
}

/// The API becomes available, and its objects are listed.
pub(crate) async fn aggregated_api(lane: Lane) -> Result<()> {
    let path = "/apis/tunnel.example/v1/words";
    let list =
        until("the aggregated API", AVAILABLE, || async { lane.ok(&["get", "--raw", path]).await.ok() });
    let list: serde_json::Value = serde_json::from_str(&list.await?)?;
    ensure!(list["items"][0]["metadata"]["name"] == "hello", "{list}");
    Ok(())
}

/// kubectl discovers the API, after kube-apiserver has read its resources (up to a minute).
pub(crate) async fn discovery(lane: Lane) -> Result<()> {
    let name = until("the aggregated API's resource", AVAILABLE, || async {
        let name = lane.ok(&["get", "words.tunnel.example", "-o", "name"]).await.ok();
        if name.is_none() {
            sleep(PAUSE).await;
        }
        name
    });
    let name = name.await?;
    ensure!(name.trim() == "word.tunnel.example/hello", "{name:?}");
    Ok(())
}
