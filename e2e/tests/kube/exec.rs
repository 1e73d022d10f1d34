//! kubectl exec: by WebSocket (kubectl's default), by SPDY, and by WebSocket up to the kubelet.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kube::{Kubectl, Session, Terminal};
use e2e::payload::Payload;
use e2e::wait::{within, within_limit};
use tokio::task::JoinSet;

use crate::world::Lane;

/// Sent and received concurrently.
const STDIN: Payload = Payload::new(5, 5_000_000);

/// Time limit of a small command.
const SOON: Duration = Duration::from_secs(20);

/// Both output streams, separately, and the command's exit code.
pub(crate) async fn streams_and_exit_code(lane: Lane) -> Result<()> {
    let script = "echo out; echo err >&2; exit 7";
    let output = lane.run(&["exec", "app", "-c", "app", "--", "sh", "-c", script]).await?;
    ensure!(output.code == Some(7), "{output:?}");
    ensure!(output.text() == "out\n" && output.stderr.starts_with("err\n"), "{output:?}");
    Ok(())
}

/// A missing command causes an error with its name.
pub(crate) async fn a_failing_command(lane: Lane) -> Result<()> {
    let output = lane.run(&["exec", "app", "-c", "app", "--", "no-such-command"]).await?;
    ensure!(output.code == Some(1) && output.stderr.contains("no-such-command"), "{output:?}");
    Ok(())
}

/// 5 MB through stdin and back; kube-apiserver translates the WebSocket for the kubelet.
pub(crate) async fn stdin_by_websocket(lane: Lane) -> Result<()> {
    echoed(&lane, lane.kubectl(), "app").await
}

/// The same with SPDY up to the kubelet.
pub(crate) async fn stdin_by_spdy(lane: Lane) -> Result<()> {
    echoed(&lane, &lane.kubectl().with_env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), "app").await
}

/// The same with a WebSocket through the tunnel: this node announces that it accepts them. Before Kubernetes 1.36 it gets SPDY.
pub(crate) async fn stdin_by_websocket_to_the_kubelet(lane: Lane) -> Result<()> {
    let before = taken(&lane, "websocket_remotecommand").await?;
    echoed(&lane, lane.kubectl(), "app-ws").await?;
    let after = taken(&lane, "websocket_remotecommand").await?;
    let accepted = after > before;
    ensure!(
        accepted == lane.node().gets_websockets,
        "the kubelet was asked for {after} WebSockets, {before} before"
    );
    Ok(())
}

/// The number of requests of a kind that the kubelet has accepted.
pub(crate) async fn taken(lane: &Lane, what: &str) -> Result<f64> {
    let text = lane.ok(&["get", "--raw", "/api/v1/nodes/node/proxy/metrics"]).await?;
    let scrape = e2e::metrics::Scrape::parse(text)?;
    Ok(scrape.value("kubelet_requests_total", &[("what", what)]))
}

async fn echoed(lane: &Lane, kubectl: &Kubectl, pod: &str) -> Result<()> {
    let mut input = Vec::new();
    STDIN.send(&mut input).await?;
    let args = lane.args(&["exec", "-i", pod, "-c", "app", "--", "cat"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = kubectl.run_with(&args, input).await?;
    ensure!(output.code == Some(0), "{:?}: {}", output.code, output.stderr);
    STDIN.check(&output.digest())
}

/// Twelve concurrent commands, each with its own answer.
pub(crate) async fn many_at_once(lane: Lane) -> Result<()> {
    let mut running = JoinSet::new();
    for number in 0..12 {
        let lane = lane.clone();
        running.spawn(async move {
            let word = format!("word-{number}");
            let text = lane.ok(&["exec", "app", "-c", "app", "--", "echo", &word]).await?;
            ensure!(text.trim() == word, "{text:?} instead of {word}");
            Ok(())
        });
    }
    within("a dozen commands", async {
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok(())
    })
    .await?
}

/// A command whose output is not read has its own connection through the tunnel, and fills it. Other connections of that agent
/// are not delayed.
pub(crate) async fn an_unread_one_does_not_stall_others(lane: Lane) -> Result<()> {
    let args = lane.args(&["exec", "app", "-c", "app", "--", "head", "-c", "200M", "/dev/zero"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut unread = Vec::new();
    for _ in 0..2 {
        unread.push(Session::start_unread(lane.kubectl(), &args)?);
    }
    for round in 0..4 {
        let word = format!("round-{round}");
        let args = ["exec", "app", "-c", "app", "--", "echo", &word];
        let text = within_limit("a command beside unread ones", SOON, lane.ok(&args)).await??;
        ensure!(text.trim() == word, "{text:?}");
    }
    ensure!(unread.iter_mut().all(Session::runs), "an output of 200 MiB ended unread");
    Ok(())
}

/// A real terminal at both ends: its size, a change of its size, an interrupt by the keyboard.
pub(crate) async fn on_a_terminal(lane: Lane) -> Result<()> {
    let script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.1; done";
    let args = lane.args(&["exec", "-it", "app", "-c", "app", "--", "sh", "-c", script]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut terminal = Terminal::start(lane.kubectl(), &args, (24, 80))?;
    terminal.wait_for("24 80").await?;
    terminal.resize((50, 132))?;
    terminal.wait_for("50 132").await?;
    terminal.send("\x03")?;
    let status = terminal.exit().await?;
    // The interrupt ends the shell.
    ensure!(!status.success(), "{status}");
    Ok(())
}
