//! The frontends' answers to failed dials: Go's texts and statuses, which kube-apiserver's users see.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::endpoints::{Endpoint, FullQueue, Refusing};
use e2e::exchange::works;
use e2e::frontend::{DialError, Mode};
use e2e::http1::{Head, read_head};
use e2e::pair::{FRONTS, Front, Pair, Setup};
use e2e::wait::{within, within_limit};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Go's time limit of a dial is 5 s; half a second more is still accepted.
const ENDPOINT_LIMIT: Duration = Duration::from_millis(5_500);

fn http_error(error: DialError) -> Result<(Head, String)> {
    match error {
        DialError::Http { head, body } => Ok((head, body)),
        other => anyhow::bail!("not an HTTP answer: {other}"),
    }
}

#[tokio::test]
async fn refused_dial_has_gos_text_by_grpc() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let refusing = Refusing::new()?;
    let error = pair.frontend().dial_error(&refusing.target()).await?;
    assert_eq!(error.text(), format!("dial tcp {}: connect: connection refused", refusing.target()));
    pair.agent().wait_metric("endpoint_dial_failure_total", &[("reason", "unknown")], 1.0).await?;
    pair.server().wait_metric("dial_failure_count", &[("reason", "error_response")], 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn refused_by_http_connect_is_502() -> Result<()> {
    for front in [Front::Unix, Front::Tls] {
        let pair = Setup::new(Mode::HttpConnect, front).start().await?;
        let refusing = Refusing::new()?;
        let (head, body) = http_error(pair.frontend().dial_error(&refusing.target()).await?)?;
        assert_eq!((head.status, head.reason.as_str()), (502, "Bad Gateway"));
        assert_eq!(head.field("connection"), Some("close"));
        assert_eq!(head.field("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(body, format!("dial tcp {}: connect: connection refused", refusing.target()));
    }
    Ok(())
}

#[tokio::test]
async fn unknown_host_has_gos_text_by_grpc() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let error = pair.frontend().dial_error("no-such-host.invalid:443").await?;
    assert!(error.text().starts_with("dial tcp: lookup no-such-host.invalid"), "{error}");
    assert!(error.text().contains("no such host"), "{error}");
    Ok(())
}

#[tokio::test]
async fn unknown_host_by_http_connect_is_502() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let (head, body) = http_error(pair.frontend().dial_error("no-such-host.invalid:443").await?)?;
    assert_eq!(head.status, 502);
    assert!(body.contains("no such host"), "{body}");
    Ok(())
}

#[tokio::test]
async fn silent_endpoint_has_gos_text_by_grpc() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let silent = FullQueue::new()?;
    let target = silent.target();
    let dial = pair.frontend().dial_error(&target);
    let error = within_limit("the answer to a dial nobody answers", ENDPOINT_LIMIT, dial).await??;
    assert_eq!(error.text(), format!("dial tcp {}: i/o timeout", silent.target()));
    pair.agent().wait_metric("endpoint_dial_failure_total", &[("reason", "timeout")], 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn silent_endpoint_by_http_connect_is_504() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let silent = FullQueue::new()?;
    let target = silent.target();
    let dial = pair.frontend().dial_error(&target);
    let error = within_limit("the answer to a dial nobody answers", ENDPOINT_LIMIT, dial).await??;
    let (head, body) = http_error(error)?;
    assert_eq!((head.status, head.reason.as_str()), (504, "Gateway Timeout"));
    assert_eq!(body, format!("dial tcp {}: i/o timeout", silent.target()));
    Ok(())
}

#[tokio::test]
async fn silent_endpoints_do_not_delay_other_dials() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let (silent, echo) = (FullQueue::new()?, Endpoint::echo().await?);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (frontend, target) = (pair.frontend().clone(), silent.target());
        waiting.spawn(async move { frontend.dial_error(&target).await });
    }
    pair.server().wait_metric("pending_backend_dials", &[], 100.0).await?;
    within_limit("a dial beside a hundred silent ones", Duration::from_secs(3), async {
        works(pair.frontend(), &echo.target()).await
    })
    .await??;
    while let Some(ended) = within("a hundred answers", waiting.join_next()).await? {
        let error = ended??;
        assert!(error.text().ends_with("i/o timeout"), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn missing_agent_has_gos_text_by_grpc() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let error = pair.frontend().dial_error("127.0.0.1:1").await?;
    assert_eq!(error.text(), "No agent available");
    pair.server().wait_metric("dial_failure_count", &[("reason", "no_agent")], 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn no_agent_by_http_connect_is_500() -> Result<()> {
    let pair = Setup::http_connect().agents(0).start().await?;
    let (head, body) = http_error(pair.frontend().dial_error("127.0.0.1:1").await?)?;
    assert_eq!((head.status, head.reason.as_str()), (500, "Internal Server Error"));
    assert_eq!(head.field("content-type"), Some("text/plain"));
    assert_eq!(body, "currently no tunnels available: No agent available");
    Ok(())
}

#[tokio::test]
async fn backend_dial_timeout_has_gos_text_by_grpc() -> Result<()> {
    let pair = Setup::grpc().server_arg("--backend-dial-timeout=300ms").start().await?;
    let silent = FullQueue::new()?;
    let error = pair.frontend().dial_error(&silent.target()).await?;
    assert_eq!(error.text(), "timed out waiting for backend dial");
    pair.server().wait_metric("dial_failure_count", &[("reason", "backend_dial_timeout")], 1.0).await?;
    pair.server().wait_metric("pending_backend_dials", &[], 0.0).await?;
    Ok(())
}

#[tokio::test]
async fn backend_dial_timeout_by_http_connect_is_504() -> Result<()> {
    let pair = Setup::http_connect().server_arg("--backend-dial-timeout=300ms").start().await?;
    let silent = FullQueue::new()?;
    let (head, body) = http_error(pair.frontend().dial_error(&silent.target()).await?)?;
    assert_eq!(head.status, 504);
    assert_eq!(body.trim_end(), "Backend dial timeout: timed out waiting for backend dial");
    Ok(())
}

/// Starts a dial that the endpoint does not answer, and kills the agent during it.
async fn lost_while_dialing(mode: Mode) -> Result<(Pair, DialError)> {
    let mut pair = Setup::new(mode, Front::Unix).start().await?;
    let silent = FullQueue::new()?;
    let (frontend, target) = (pair.frontend().clone(), silent.target());
    let dial = tokio::spawn(async move { frontend.dial_error(&target).await });
    pair.server().wait_metric("pending_backend_dials", &[], 1.0).await?;
    pair.agent_mut().process.kill()?;
    let error =
        within_limit("the answer to a dial whose agent died", Duration::from_secs(5), dial).await???;
    pair.server().wait_metric("pending_backend_dials", &[], 0.0).await?;
    Ok((pair, error))
}

#[tokio::test]
async fn agent_lost_while_dialing_is_answered_by_grpc() -> Result<()> {
    let (_pair, error) = lost_while_dialing(Mode::Grpc).await?;
    assert!(matches!(error, DialError::Refused(_)), "{error}");
    Ok(())
}

#[tokio::test]
async fn agent_lost_while_dialing_is_502_by_http_connect() -> Result<()> {
    let (_pair, error) = lost_while_dialing(Mode::HttpConnect).await?;
    let (head, body) = http_error(error)?;
    assert_eq!(head.status, 502);
    assert!(body.starts_with("Backend context error: "), "{body}");
    Ok(())
}

#[tokio::test]
async fn a_dial_fails_over_to_another_agent_when_its_agent_dies() -> Result<()> {
    let mut pair = Setup::grpc()
        .server_arg("--proxy-strategies=destHost,default")
        .agent("preferred", "ipv4=127.0.0.1")
        .agent("other", "")
        .start()
        .await?;
    let endpoint = Endpoint::echo().await?;
    // A stopped agent receives the dial and does not answer; then it is killed.
    pair.agent().process.signal(e2e::process::Signal::STOP)?;
    let (frontend, target) = (pair.frontend().clone(), endpoint.target());
    let dial = tokio::spawn(async move { works(&frontend, &target).await });
    pair.server().wait_metric("pending_backend_dials", &[], 1.0).await?;
    pair.agent_mut().process.kill()?;
    within("a dial that fails over", dial).await???;
    Ok(())
}

#[tokio::test]
async fn too_many_open_files_is_503() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let endpoint = Endpoint::echo().await?;
    works(pair.frontend(), &endpoint.target()).await?;
    let pid = i32::try_from(pair.agent().process.pid()).ok().and_then(Pid::from_raw);
    let before = prlimit(pid, Resource::Nofile, Rlimit { current: Some(4), maximum: Some(20_000) })?;
    let (head, body) = http_error(pair.frontend().dial_error(&endpoint.target()).await?)?;
    assert_eq!(head.status, 503);
    assert!(body.contains("too many open files"), "{body}");
    prlimit(pid, Resource::Nofile, before)?;
    works(pair.frontend(), &endpoint.target()).await
}

#[tokio::test]
async fn other_methods_are_405() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let mut socket = pair.frontend().socket().await?;
    socket.write_all(b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let (head, mut body) = within("the answer to GET", read_head(&mut socket)).await??;
    assert_eq!(head.status, 405);
    while !body.ends_with(b"passthrough\n") && !body.ends_with(b"passthrough") {
        let mut more = [0; 256];
        let count = within("the body", socket.read(&mut more)).await??;
        ensure!(count > 0, "the body ended: {:?}", String::from_utf8_lossy(&body));
        body.extend_from_slice(&more[..count]);
    }
    assert_eq!(String::from_utf8_lossy(&body).trim_end(), "this proxy only supports CONNECT passthrough");
    Ok(())
}

/// After any failure the next dial succeeds, with every kind of frontend.
#[tokio::test]
async fn a_failure_harms_nothing_else() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let (refusing, endpoint) = (Refusing::new()?, Endpoint::echo().await?);
        for _ in 0..3 {
            pair.frontend().dial_error(&refusing.target()).await?;
            works(pair.frontend(), &endpoint.target()).await?;
        }
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

/// A client that ends its TLS session in order is told from a half-closed one by its FIN.
#[tokio::test]
async fn a_close_in_order_while_dialing_cancels_the_dial() -> Result<()> {
    for front in [Front::Unix, Front::Tls] {
        let pair = Setup::new(Mode::HttpConnect, front).start().await?;
        let silent = FullQueue::new()?;
        let mut socket = pair.frontend().socket().await?;
        socket.write_all(format!("CONNECT {} HTTP/1.1\r\n\r\n", silent.target()).as_bytes()).await?;
        pair.server().wait_metric("pending_backend_dials", &[], 1.0).await?;
        socket.shutdown().await?;
        drop(socket);
        let gone = pair.server().wait_metric("pending_backend_dials", &[], 0.0);
        // The endpoint's time-out would take 5 s.
        within_limit("the end of an abandoned dial", Duration::from_secs(3), gone).await??;
        pair.server().wait_metric("dial_failure_count", &[("reason", "frontend_close")], 1.0).await?;
    }
    Ok(())
}
