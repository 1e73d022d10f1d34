//! Health, readiness and admin ports.

use anyhow::Result;
use e2e::http1::{Answer, get};
use e2e::pair::{Pair, Setup};
use e2e::process::Signal;
use e2e::wait::{DEADLINE, until};

async fn profiled() -> Result<Pair> {
    Setup::grpc().server_arg("--enable-profiling").agent_arg("--enable-profiling=true").start().await
}

fn ok(answer: &Answer) -> bool {
    answer.head.status == 200 && answer.body == "ok"
}

#[tokio::test]
async fn connected_programs_are_healthy_and_ready() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    for address in [pair.server().health, pair.agent().health] {
        for path in ["/healthz", "/readyz", "/ready"] {
            let answer = get(address, path).await?;
            assert!(ok(&answer), "{address}{path}: {answer:?}");
        }
        assert_eq!(get(address, "/metrics").await?.head.status, 200);
        assert_eq!(get(address, "/nothing").await?.head.status, 404);
    }
    Ok(())
}

#[tokio::test]
async fn a_server_without_agent_is_alive_and_not_ready() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let health = pair.server().health;
    assert!(ok(&get(health, "/healthz").await?));
    for path in ["/readyz", "/ready"] {
        let answer = get(health, path).await?;
        assert_eq!(
            (answer.head.status, answer.body.as_str()),
            (500, "no connection to any proxy agent"),
            "{path}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_without_server_is_alive_and_not_ready() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    pair.server_mut().process.kill()?;
    pair.agent_mut().wait_unready().await?;
    let health = pair.agent().health;
    assert!(ok(&get(health, "/healthz").await?));
    let body = "[+]ping ok\n[-]server-connected failed: no servers connected\n";
    for path in ["/readyz", "/ready", "/readyz?verbose"] {
        let answer = get(health, path).await?;
        assert_eq!(answer.head.status, 503, "{path}");
        assert!(answer.body.starts_with(body), "{path}: {}", answer.body);
        assert!(path.contains('?') || answer.body == body, "{path}: {}", answer.body);
    }
    pair.agent().wait_metric("open_server_connections", &[], 0.0).await?;
    let process = &pair.agent().process;
    process.wait_said("server-connected check failed: no servers connected").await?;
    let said = process.log().iter().filter(|line| line.contains("check failed")).count();
    assert_eq!(said, 1, "once a minute");
    Ok(())
}

#[tokio::test]
async fn the_agents_verbose_readiness_lists_its_checks() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let answer = get(pair.agent().health, "/readyz?verbose").await?;
    assert_eq!(answer.head.status, 200);
    assert!(answer.body.starts_with("[+]ping ok\n[+]server-connected ok\n"), "{}", answer.body);
    assert!(answer.body.ends_with("\ncheck passed\n"), "{}", answer.body);
    Ok(())
}

#[tokio::test]
async fn every_condition_is_listed_with_its_reason() -> Result<()> {
    let mut pair = Setup::grpc().agent_arg("--min-ready-servers=2").start().await?;
    let answer = get(pair.agent().health, "/readyz?verbose").await?;
    assert_eq!(answer.head.status, 503);
    let connected = "[-]server-connected failed: 1 of 1 known servers connected, --min-ready-servers=2\n";
    assert_eq!(answer.body, format!("[+]ping ok\n{connected}[+]draining ok\n"));
    let answer = get(pair.server().health, "/readyz?verbose").await?;
    let all = "[+]ping ok\n[+]shutdown ok\n[+]frontend ok\n[+]backends ok\ncheck passed\n";
    assert_eq!((answer.head.status, answer.body.as_str()), (200, all));
    pair.agent().process.signal(Signal::TERM)?;
    let health = pair.agent().health;
    until("a draining agent", DEADLINE, || async {
        let body = get(health, "/readyz").await.ok()?.body;
        body.contains("[-]draining failed: the agent drains and takes no new dials\n").then_some(())
    })
    .await?;
    pair.agent_mut().process.kill()?;
    pair.server_mut().wait_unready().await?;
    let answer = get(pair.server().health, "/readyz?verbose").await?;
    assert!(
        answer.body.contains("[-]backends failed: no connection to any proxy agent\n"),
        "{}",
        answer.body
    );
    Ok(())
}

#[tokio::test]
async fn readiness_asks_the_strategies_that_its_policy_names() -> Result<()> {
    for (policy, ready) in [("first-strategy", false), ("any", true), ("all", false)] {
        let pair = Setup::grpc()
            .agents(0)
            .server_arg("--proxy-strategies=destHost,default")
            .server_arg(format!("--readiness-policy={policy}"))
            .start()
            .await?;
        let mut pair = pair;
        pair.add_agent("without-a-host", "", &[])?;
        pair.server().wait_metric("ready_backends", &[("proxy_strategy", "default")], 1.0).await?;
        let answer = get(pair.server().health, "/readyz").await?;
        assert_eq!(answer.head.status, if ready { 200 } else { 500 }, "{policy}: {}", answer.body);
        assert_eq!(policy == "all", answer.body.ends_with("for the strategies: destHost"), "{}", answer.body);
    }
    Ok(())
}

#[tokio::test]
async fn the_servers_admin_port_serves_metrics() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let answer = get(pair.server().admin, "/metrics").await?;
    assert_eq!(answer.head.status, 200);
    assert!(answer.body.contains("konnectivity_network_proxy_server_ready_backend_connections"));
    Ok(())
}

#[tokio::test]
async fn the_agents_admin_port_points_to_its_health_port() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let answer = get(pair.agent().admin, "/metrics").await?;
    assert_eq!(answer.head.status, 301);
    let expected = format!("//127.0.0.1:{}/metrics", pair.agent().health.port());
    assert_eq!(answer.head.field("location"), Some(expected.as_str()));
    Ok(())
}

#[tokio::test]
async fn profiles_are_served_when_asked_for() -> Result<()> {
    let pair = profiled().await?;
    for address in [pair.server().admin, pair.agent().admin] {
        let redirect = get(address, "/debug/pprof").await?;
        assert_eq!(redirect.head.status, 301);
        assert!(redirect.head.field("location").is_some_and(|location| location.ends_with("/debug/pprof/")));
        assert_eq!(get(address, "/debug/pprof/").await?.head.status, 200);
    }
    Ok(())
}

#[tokio::test]
async fn profiles_are_not_served_otherwise() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    for address in [pair.server().admin, pair.agent().admin] {
        for path in ["/debug/pprof", "/debug/pprof/", "/debug/pprof/profile"] {
            assert_eq!(get(address, path).await?.head.status, 404, "{address}{path}");
        }
    }
    Ok(())
}
