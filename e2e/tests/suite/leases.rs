//! Leases between real processes, with a fake kube-apiserver: servers publish leases, agents count them.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::balancer::Policy;
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, expect_any_end, works};
use e2e::pair::Setup;
use e2e::payload::Payload;
use e2e::process::Signal;
use e2e::wait::{DEADLINE, never, until, within_limit};
use fake_apiserver::{FakeApi, Fault};
use serde_json::json;
use tokio::io::AsyncWriteExt;

const LEASES: &str = "kube-system";

/// Servers whose own count is 1, so that agents learn the number from leases only.
fn setup(api: &FakeApi, folder: &std::path::Path) -> Result<Setup> {
    let kubeconfig = api.kubeconfig(folder, "{token: canary}")?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    Ok(Setup::grpc()
        .server_arg("--enable-lease-controller")
        .server_arg("--server-count=1")
        .server_arg(&kubeconfig)
        .agent_arg("--count-server-leases")
        .agent_arg(&kubeconfig))
}

fn holders(api: &FakeApi) -> Vec<String> {
    let leases = api.leases(LEASES);
    leases
        .iter()
        .map(|lease| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// The balancer leads to one server only.
#[tokio::test]
async fn advertised_addresses_are_dialed_directly() -> Result<()> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    let setup = setup(&api, folder.path())?.server_arg("--advertise-address=127.0.0.1:{agent-port}");
    let mut pair = setup.servers(3).agents(0).start().await?;
    let balancer = pair.balancer.as_ref().expect("balanced");
    balancer.set_policy(Policy::Stick(0));
    pair.add_agent("direct", "", &[])?;
    pair.wait_connected().await?;
    ensure!(pair.balancer.as_ref().is_some_and(|balancer| balancer.accepted() <= 1));
    pair.servers[1].restart()?;
    pair.servers[1].wait_healthy().await?;
    pair.wait_connected().await
}

#[tokio::test]
async fn agents_follow_a_scale_from_one_to_three_to_two() -> Result<()> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    // With one lane the last attempt is over when the counts are right.
    let setup = setup(&api, folder.path())?.agent_arg("--lanes=1");
    let mut pair = setup.servers(3).agents(2).start().await?;
    for index in [1, 2] {
        pair.servers[index].process.signal(Signal::TERM)?;
        ensure!(pair.servers[index].process.exit(DEADLINE).await?.success(), "no orderly end");
    }
    assert_eq!(holders(&api), ["server-0"], "a server that stops deletes its lease");
    pair.wait_servers(1.0).await?;
    for index in [1, 2] {
        pair.servers[index].process.restart()?;
        pair.servers[index].wait_healthy().await?;
    }
    within_limit("three servers found", Duration::from_secs(15), pair.wait_servers(3.0)).await??;
    assert_eq!(holders(&api), ["server-0", "server-1", "server-2"]);
    let endpoint = Endpoint::echo().await?;
    for server in &pair.servers {
        works(&server.frontend, &endpoint.target()).await?;
    }
    pair.servers[2].process.signal(Signal::TERM)?;
    ensure!(pair.servers[2].process.exit(DEADLINE).await?.success(), "no orderly end");
    pair.wait_servers(2.0).await?;
    // No agent looks for the deleted server: few requests, and no further attempts.
    let (balancer, renewals) = (pair.balancer.as_ref().expect("balanced"), api.count("PUT"));
    let accepted = balancer.accepted();
    until("a renewal", DEADLINE, || async { (api.count("PUT") > renewals).then_some(()) }).await?;
    never("an attempt", Duration::from_secs(2), || balancer.accepted() != accepted).await
}

/// The kube-apiserver of a server is down: the server cannot renew its lease, and keeps its streams.
#[tokio::test]
async fn a_server_with_a_lease_is_found_while_a_connected_server_has_none() -> Result<()> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    let mut pair = setup(&api, folder.path())?.servers(3).start().await?;
    let lease = "konnectivity-proxy-server-server-1";
    api.set_fault(lease, Fault::Status(500, "InternalError"));
    api.delete_lease(LEASES, lease);
    pair.agent().wait_metric("known_server_count", &[], 2.0).await?;
    pair.servers[2].process.signal(Signal::TERM)?;
    ensure!(pair.servers[2].process.exit(DEADLINE).await?.success(), "no orderly end");
    pair.agent().wait_metric("known_server_count", &[], 1.0).await?;
    pair.agent().wait_metric("open_server_connections", &[], 2.0).await?;
    pair.servers[2].process.restart()?;
    pair.servers[2].wait_ready().await?;
    pair.agent().wait_metric("known_server_count", &[], 2.0).await?;
    pair.agent().wait_metric("open_server_connections", &[], 3.0).await.map(drop)
}

/// A replica is evicted, and its successor starts while the replica drains its connections.
#[tokio::test]
async fn a_successor_is_found_while_its_predecessor_drains() -> Result<()> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    let setup = setup(&api, folder.path())?.server_arg("--graceful-shutdown-timeout=120s");
    let mut pair = setup.servers(3).start().await?;
    pair.servers[2].process.signal(Signal::TERM)?;
    ensure!(pair.servers[2].process.exit(DEADLINE).await?.success(), "no orderly end");
    pair.wait_servers(2.0).await?;

    let endpoint = Endpoint::echo().await?;
    let conn = pair.servers[0].frontend.dial(&endpoint.target()).await?;
    let mut conn = echo(conn, Payload::new(1, 10)).await?;
    pair.servers[0].process.signal(Signal::TERM)?;
    pair.servers[0].wait_unready().await?;
    pair.servers[2].process.restart()?;
    pair.servers[2].wait_ready().await?;
    pair.wait_servers(3.0).await?;
    works(&pair.servers[2].frontend, &endpoint.target()).await?;

    conn.shutdown().await?;
    expect_any_end(&mut conn).await?;
    drop(conn);
    ensure!(pair.servers[0].process.exit(DEADLINE).await?.success(), "no orderly end");
    assert_eq!(holders(&api), ["server-1", "server-2"]);
    pair.wait_servers(2.0).await
}

#[tokio::test]
async fn an_outage_of_the_api_changes_nothing() -> Result<()> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    let mut pair = setup(&api, folder.path())?.servers(2).start().await?;
    let endpoint = Endpoint::echo().await?;
    for fault in [None, Some(Fault::Status(500, "InternalError")), Some(Fault::Hang)] {
        let hangs = matches!(fault, Some(Fault::Hang));
        let unanswered = pair.agent().metric("lease_calls_unanswered_total", &[]).await?;
        let before = api.seen().len();
        match fault {
            None => api.restart().await,
            Some(fault) => {
                api.set_fault("/leases", fault);
                api.end_watches();
            }
        }
        until("requests that fail", DEADLINE, || async { (api.seen().len() > before + 1).then_some(()) })
            .await?;
        // The agent's list ends after 30 s.
        until("an unanswered call", DEADLINE * 2, || async {
            let now = pair.agent().metric("lease_calls_unanswered_total", &[]).await.ok()?;
            (!hangs || now > unanswered).then_some(())
        })
        .await?;
        pair.wait_servers(2.0).await?;
        for server in &pair.servers {
            works(&server.frontend, &endpoint.target()).await?;
        }
        pair.agent_mut().wait_ready().await?;
        api.heal();
    }
    Ok(())
}

#[tokio::test]
async fn nothing_waits_for_the_api() -> Result<()> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    api.down();
    ensure!(api.wait(|api| std::net::TcpStream::connect(api.address()).is_err()).await, "still up");
    let pair = setup(&api, folder.path())?.start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    pair.wait_servers(1.0).await?;
    api.up();
    ensure!(api.wait(|api| holders(api) == ["server-0"]).await, "no lease after the API's return");
    Ok(())
}

/// The larger of both counts, on request.
#[tokio::test]
async fn max_takes_the_larger_count() -> Result<()> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    let setup = setup(&api, folder.path())?.server_arg("--server-count=4");
    let pair = setup.agent_arg("--server-count-source=max").start().await?;
    pair.agent().wait_metric("known_server_count", &[], 4.0).await?;
    let further = ["server-1", "server-2", "server-3", "server-4"];
    for name in further {
        let spec = json!({ "holderIdentity": name, "leaseDurationSeconds": 3_600, "renewTime": "2200-01-01T00:00:00.000000Z" });
        api.put_lease(LEASES, name, json!({ "k8s-app": "konnectivity-server" }), spec);
    }
    pair.agent().wait_metric("known_server_count", &[], 5.0).await?;
    for name in further {
        api.delete_lease(LEASES, name);
    }
    pair.agent().wait_metric("known_server_count", &[], 4.0).await.map(drop)
}
