//! kubectl logs.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kube::Session;
use e2e::payload::Payload;
use e2e::wait::within_limit;

use crate::world::Lane;

const BIG: Payload = Payload::new(64, 64 * 1024 * 1024);

/// Time limit of a small command.
const SOON: Duration = Duration::from_secs(20);

/// 64 MiB arrive complete.
pub(crate) async fn whole(lane: Lane) -> Result<()> {
    let path = lane.node().log(lane.name(), "app", "big");
    let mut content = Vec::new();
    BIG.send(&mut content).await?;
    std::fs::write(&path, content)?;
    let output = lane.run(&["logs", "app", "-c", "big"]).await?;
    ensure!(output.code == Some(0), "{}", output.stderr);
    BIG.check(&output.digest())?;
    Ok(std::fs::remove_file(path)?)
}

/// A client that does not read a large log delays no other client of that kube-apiserver.
pub(crate) async fn an_unread_one_does_not_stall_others(lane: Lane) -> Result<()> {
    let path = lane.node().log(lane.name(), "app-ws", "big");
    std::fs::write(&path, vec![b'x'; 64 * 1024 * 1024])?;
    let args = lane.args(&["logs", "app-ws", "-c", "big"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut unread = Vec::new();
    for _ in 0..3 {
        unread.push(Session::start_unread(lane.kubectl(), &args)?);
    }
    for word in ["one", "two", "three", "four", "five"] {
        let args = ["exec", "app", "-c", "app", "--", "echo", word];
        let text = within_limit("a command beside unread logs", SOON, lane.ok(&args)).await??;
        ensure!(text.trim() == word, "{text:?}");
    }
    ensure!(unread.iter_mut().all(Session::runs), "a log of 64 MiB ended unread");
    Ok(std::fs::remove_file(path)?)
}

/// Only the last lines.
pub(crate) async fn tail(lane: Lane) -> Result<()> {
    let lines: String = (0..1000).map(|number| format!("line {number}\n")).collect();
    std::fs::write(lane.node().log(lane.name(), "app", "app"), lines)?;
    let text = lane.ok(&["logs", "app", "-c", "app", "--tail=2"]).await?;
    ensure!(text == "line 998\nline 999\n", "{text:?}");
    Ok(())
}

/// Lines arrive as soon as they are written.
pub(crate) async fn follow(lane: Lane) -> Result<()> {
    let path = lane.node().log(lane.name(), "app", "ticks");
    let mut log = OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(log, "first line")?;
    let args = lane.args(&["logs", "app", "-c", "ticks", "-f"]);
    let follower = lane.kubectl().start(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    for line in ["first line", "second line", "third line"] {
        if line != "first line" {
            writeln!(log, "{line}")?;
        }
        follower.wait_said(line).await?;
    }
    Ok(())
}
