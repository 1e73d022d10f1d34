//! kubectl attach.

use anyhow::{Result, ensure};
use e2e::kube::Session;

use crate::world::Lane;

/// Two people at one running process: what one types is answered to both.
pub(crate) async fn to_a_running_container(lane: Lane) -> Result<()> {
    let start = |args: &[&str]| {
        let args = lane.args(args);
        Session::start(lane.kubectl(), &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut typist = start(&["attach", "-i", "app", "-c", "app"])?;
    typist.send("one\n")?;
    typist.wait_for("heard one\n").await?;
    let mut second = start(&["attach", "-i", "app", "-c", "app"])?;
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
