//! Health, readiness and admin ports.

use anyhow::Result;
use e2e::http1::{Answer, get};
use e2e::pair::{Pair, Setup};

async fn profiled() -> Result<Pair> {
    Setup::grpc().server_arg("--enable-profiling").agent_arg("--enable-profiling=true").start().await
}

fn ok(answer: &Answer) -> bool {
    answer.head.status == 200 && answer.body == "ok"
}

#[tokio::test]
async fn healthy_and_ready() -> Result<()> {
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
    for path in ["/readyz", "/ready", "/readyz?verbose"] {
        let answer = get(health, path).await?;
        assert_eq!(answer.head.status, 503, "{path}");
        assert_eq!(answer.body, "[+]ping ok\n[-]server-connected failed: no servers connected\n", "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn the_agents_verbose_readiness_lists_its_checks() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let answer = get(pair.agent().health, "/readyz?verbose").await?;
    assert_eq!(answer.head.status, 200);
    assert_eq!(answer.body, "[+]ping ok\n[+]server-connected ok\ncheck passed\n");
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
