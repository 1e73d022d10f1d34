//! Leases of real replicas in a real API server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::pair::Setup;
use e2e::process::Signal;
use e2e::wait::{DEADLINE, until, within_limit};
use serde_json::{Value, json};

use crate::world::World;

/// Three replicas and two agents, with the documented rights.
pub(crate) async fn agents_follow_a_scale_from_one_to_three_to_two(world: Arc<World>) -> Result<()> {
    let installation = world.install("scale").await?;
    let mut pair = installation.with_leases().await?.servers(3).agents(2).start().await?;
    let text =
        installation.kubectl(&["get", "lease", "konnectivity-proxy-server-server-0", "-o", "json"]).await?;
    let lease: Value = serde_json::from_str(&text)?;
    assert_eq!(lease["metadata"]["labels"], json!({ "k8s-app": "konnectivity-server" }));
    assert_eq!(
        (&lease["spec"]["holderIdentity"], &lease["spec"]["leaseDurationSeconds"]),
        (&json!("server-0"), &json!(30))
    );
    for index in [1, 2] {
        pair.servers[index].process.signal(Signal::TERM)?;
        ensure!(pair.servers[index].process.exit(DEADLINE).await?.success(), "no orderly end");
    }
    assert_eq!(installation.holders().await?, ["server-0"], "a server that stops deletes its lease");
    pair.wait_servers(1.0).await?;
    for index in [1, 2] {
        pair.servers[index].process.restart()?;
        pair.servers[index].wait_healthy().await?;
    }
    within_limit("three servers found", Duration::from_secs(30), pair.wait_servers(3.0)).await??;
    pair.servers[2].process.signal(Signal::TERM)?;
    ensure!(pair.servers[2].process.exit(DEADLINE).await?.success(), "no orderly end");
    pair.wait_servers(2.0).await?;
    let endpoint = Endpoint::echo().await?;
    for server in &pair.servers[..2] {
        works(&server.frontend, &endpoint.target()).await?;
    }
    // An administrator sees the renewals.
    let renewed = || {
        installation.kubectl(&[
            "get",
            "lease",
            "konnectivity-proxy-server-server-0",
            "-o",
            "jsonpath={.spec.renewTime}",
        ])
    };
    let first = renewed().await?;
    until("a renewal", DEADLINE, || async { renewed().await.ok().filter(|now| *now != first) }).await?;
    let watches = pair.agents[0].metric("lease_lists_total", &[("http_response_code", "200")]).await?;
    ensure!(watches < 12.0, "{watches} lists and watches");
    Ok(())
}

/// A dead server's lease is deleted, and a lease with other labels stays.
pub(crate) async fn expired_leases_are_deleted_and_others_stay(world: Arc<World>) -> Result<()> {
    let installation = world.install("expired").await?;
    let lease = |name: &str, labels: Value| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": "expired", "labels": labels },
            "spec": {
                "holderIdentity": name, "leaseDurationSeconds": 30, "renewTime": "2020-01-01T00:00:00.000000Z",
            },
        })
    };
    let label = json!({ "k8s-app": "konnectivity-server" });
    for object in [lease("dead", label), lease("unrelated", json!({ "k8s-app": "something-else" }))] {
        world.kubectl().apply(&object.to_string()).await?;
    }
    let pair = installation.with_leases().await?.start().await?;
    assert_eq!(pair.agent().metric("known_server_count", &[]).await?, 1.0, "expired leases do not count");
    let gone = until("the dead one's deletion", Duration::from_secs(120), || async {
        let holders = installation.holders().await.ok()?;
        (!holders.contains(&"dead".to_owned())).then_some(holders)
    });
    let mut left = gone.await?;
    left.sort();
    assert_eq!(left, ["server-0", "unrelated"]);
    pair.server().wait_metric("culled_leases_count", &[], 1.0).await?;
    let deleted =
        pair.server().metric("lease_delete_total", &[("http_status_code", "200"), ("reason", "")]).await?;
    assert_eq!(deleted, 1.0);
    Ok(())
}

/// An account without rights: log lines, counted answers, and a working tunnel.
pub(crate) async fn without_rights_everything_still_serves(world: Arc<World>) -> Result<()> {
    let installation = world.install("no-rights").await?;
    let other = format!("--kubeconfig={}", installation.kubeconfig("other").await?.display());
    let setup: Setup = installation.with_leases().await?.server_arg(&other).agent_arg(&other);
    let pair = setup.start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    let forbidden = [("http_status_code", "403"), ("reason", "Forbidden")];
    pair.server()
        .wait_metrics("a refused list", |scrape| {
            scrape.value("konnectivity_network_proxy_server_lease_list_total", &forbidden) >= 1.0
        })
        .await?;
    pair.server().process.wait_said("Could not list leases").await?;
    pair.agent().process.wait_said("the last count holds").await
}
