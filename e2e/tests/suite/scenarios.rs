//! The program that injects production's faults in network namespaces, at its smallest. Needs root; `hack/scenarios` measures.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::figures::say;
use e2e::frontend::Mode;
use e2e::netns::{Network, if_possible};
use e2e::program::Program;
use e2e::scenarios::{Mix, Scenario, Sizes, Timing, run};

#[test]
fn all_streams_come_back_after_the_balancer_loses_its_flows() -> Result<()> {
    if if_possible("SKIPPED: no network namespaces can be made here", Network::new(1))?.is_none() {
        return Ok(());
    }
    let mix =
        Mix { name: "native-native".into(), server: Program::Server.path()?, agent: Program::Agent.path()? };
    let sizes = Sizes { servers: 2, agents: 2, interval: Duration::from_millis(200), mode: Mode::Grpc };
    let timing = Timing { before: Duration::from_secs(1), after: Duration::from_secs(6) };
    let outcome = run(Scenario::BothReset, &mix, sizes, timing)?;
    let figure = |name: &str| {
        let figure = outcome.figures.iter().find(|figure| figure.name.starts_with(name));
        figure.map(|figure| figure.value).with_context(|| format!("no figure {name}"))
    };
    say("all flows lost", format!("{:?}", outcome.figures));
    let (back, flows, failed) = (figure("all streams")?, figure("flows")?, figure("dials that failed")?);
    ensure!(!back.more, "streams are missing after 6 s");
    ensure!(flows.number >= 1.0, "{flows} flows for each stream: none was lost");
    ensure!(failed.number < 100.0, "no dial succeeded after the loss");
    ensure!(outcome.panels.iter().all(|panel| !panel.curves.concat().is_empty()), "a plot is empty");
    Ok(())
}
