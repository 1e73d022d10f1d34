//! A few seconds of `endurance soak`.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::figures;
use e2e::soak::{Soak, soak};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_random_load_with_stalls_kills_and_resets_everything_is_back_where_it_was() -> Result<()> {
    let (kill_every, cut_every) = (Duration::from_secs(1), Duration::from_millis(300));
    let plan = Soak { time: Duration::from_secs(12), clients: 20, seed: 1, kill_every, cut_every };
    let done = soak(plan).await?;
    figures::say("soak", &done);
    ensure!(
        done.kills > 0 && done.cuts > 0 && done.whole > 50 && done.broken > 50,
        "too little went on: {done}"
    );
    done.check()
}
