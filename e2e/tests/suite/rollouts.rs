//! Rolling upgrades: every process is replaced while dials continue.

use std::time::Duration;

use anyhow::Result;
use e2e::load::Plan;
use e2e::rollout::restart_all_under_load;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restarts_drop_nothing() -> Result<()> {
    let plan = Plan { rate: 40, hold: Duration::from_millis(1_500), transfers: 0 };
    let report = restart_all_under_load(&plan, 1).await?;
    e2e::figures::say("a roll-out", &report);
    report.check()
}
