//! kubectl attach.

use anyhow::{Result, ensure};

use crate::world::Lane;

/// Two clients attached to one process: both see the answer to the input of one.
pub(crate) async fn to_a_running_container(lane: Lane) -> Result<()> {
    two_at(&lane, "app").await
}

/// The same with a WebSocket through the tunnel.
pub(crate) async fn by_websocket_to_the_kubelet(lane: Lane) -> Result<()> {
    two_at(&lane, "app-ws").await
}

async fn two_at(lane: &Lane, pod: &str) -> Result<()> {
    let mut typist = lane.session(&["attach", "-i", pod, "-c", "app"])?;
    typist.send("one\n")?;
    typist.wait_for("heard one\n").await?;
    let mut second = lane.session(&["attach", "-i", pod, "-c", "app"])?;
    second.send("two\n")?;
    second.wait_for("heard two\n").await?;
    typist.wait_for("heard two\n").await?;
    typist.send("three\n")?;
    second.wait_for("heard three\n").await?;
    typist.close_input();
    let status = typist.exit().await?;
    ensure!(status.success(), "{status}");
    second.send("four\n")?;
    second.wait_for("heard four\n").await
}
