//! Many dials through many agents, in paused time: who gets them, and who is ejected.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::{Strategy as Generator, *};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, advance};

use serve::metrics::Registry;

use super::Strategy;
use super::table::Health;
use super::*;

const MS: Duration = Duration::from_millis(1);

/// How an agent behaves.
#[derive(Debug, Clone, Copy)]
struct Behavior {
    /// Its dials take this long.
    took: Duration,
    /// It fails this share of its dials, in percent.
    fails: u32,
}

const QUICK: Behavior = Behavior { took: MS, fails: 0 };

/// What happened in a simulation.
struct Outcome {
    /// Dials by agent.
    dials: Vec<u32>,
    /// The largest number of agents that were ejected at once.
    ejected: usize,
    /// Ejections by agent.
    ejections: Vec<u32>,
}

/// Dials at `rate` dials a second, which another agent tries again if the first one fails.
async fn simulate(agents: &[Behavior], rate: u32, time: Duration, seed: u64) -> Outcome {
    let metrics = RouteMetrics::register(&mut Registry::default());
    let manager = BackendManager::new(&[Strategy::Default], metrics);
    let register = |n: usize| {
        let backend = Backend {
            agent_id: format!("{n:04}").into(),
            identifiers: Identifiers::default(),
            process: None,
            owner: None,
            handle: n,
        };
        manager.register(backend).unwrap()
    };
    let _registered: Vec<_> = (0..agents.len()).map(register).collect();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut in_flight: BTreeMap<Reverse<(Instant, u64)>, PendingDial> = BTreeMap::new();
    let mut outcome = Outcome { dials: vec![0; agents.len()], ejected: 0, ejections: vec![0; agents.len()] };
    let (began, mut serial, mut swept) = (Instant::now(), 0_u64, Instant::now());
    let mut was_ejected = vec![false; agents.len()];
    while began.elapsed() < time {
        let now = Instant::now();
        while let Some(last) = in_flight.last_entry()
            && last.key().0.0 <= now
        {
            let end = last.key().0.0;
            last.remove().reached(end);
        }
        if now >= swept + Duration::from_secs(1) {
            swept = now;
            let agents = manager.agents();
            manager.sweep(&agents, now);
            let ejected = AgentView::ejected(&agents, now);
            outcome.ejected = outcome.ejected.max(ejected.len());
            for (n, was) in was_ejected.iter_mut().enumerate() {
                let is = ejected.iter().any(|(id, _)| *id == format!("{n:04}"));
                outcome.ejections[n] += u32::from(is && !std::mem::replace(was, is));
                *was = is;
            }
        }
        let first = manager.choose_of("", (&Health::ALL, None), &[], &mut rng).unwrap();
        let failed = agents[first.handle].fails > rng.random_range(0..100);
        let mut take = |choice: Choice<usize>| {
            outcome.dials[choice.handle] += 1;
            serial += 1;
            let end = now + agents[choice.handle].took;
            in_flight.insert(Reverse((end, serial)), choice.pending);
        };
        if failed {
            let other = manager.choose_of("", (&[Health::Ready], None), &[first.link], &mut rng);
            if let Some(other) = other.filter(|other| agents[other.handle].fails == 0) {
                take(other);
                first.pending.stats.blame(now, now);
            }
            outcome.dials[first.handle] += 1;
        } else {
            take(first);
        }
        advance(Duration::from_secs(1) / rate).await;
    }
    outcome
}

fn share(dials: &[u32], agent: usize) -> f64 {
    f64::from(dials[agent]) / f64::from(dials.iter().sum::<u32>())
}

#[tokio::test(start_paused = true)]
async fn one_of_three_with_a_hundredth_of_a_cpu_gets_few_dials() {
    for rate in [2, 10, 100] {
        let slow = Behavior { took: 120 * MS, ..QUICK };
        let dials = simulate(&[QUICK, slow, QUICK], rate, Duration::from_secs(600), 1).await.dials;
        let share = share(&dials, 1);
        println!("figures: the slow agent of three gets {:.2} % of {rate} dials/s", 100.0 * share);
        assert!(share <= 0.03, "{dials:?}");
        assert!(dials[1] > 0, "it is tried again: {dials:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_thousand_agents_none_starves_and_the_slow_ones_get_few() {
    let agents: Vec<Behavior> = (0..1_000)
        .map(|n| Behavior { took: if n % 50 == 0 { 500 * MS } else { (1 + n % 3) * MS }, ..QUICK })
        .collect();
    let dials = simulate(&agents, 1_000, Duration::from_secs(120), 2).await.dials;
    let of = |slow: bool| {
        dials.iter().enumerate().filter(move |(n, _)| (n % 50 == 0) == slow).map(|(_, dials)| *dials)
    };
    let (least, most) = (of(false).min().unwrap(), of(false).max().unwrap());
    let slow = (of(true).min().unwrap(), of(true).max().unwrap());
    println!("figures: quick agents get {least} to {most} dials, slow ones {slow:?}");
    assert!(least >= 60 && most <= 240, "{least} to {most}, 120 are fair");
    assert!(slow.0 >= 1 && slow.1 < 30, "{slow:?}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_fails_is_ejected_tried_again_and_ejected_for_longer() {
    let failing = Behavior { fails: 100, ..QUICK };
    let outcome = simulate(&[QUICK, failing, QUICK, QUICK], 20, Duration::from_secs(600), 3).await;
    println!(
        "figures: the failing agent of four: {} ejections, {:.2} % of the dials",
        outcome.ejections[1],
        100.0 * share(&outcome.dials, 1)
    );
    assert!((5..=9).contains(&outcome.ejections[1]), "{:?}", outcome.ejections);
    assert!(share(&outcome.dials, 1) < 0.01, "{:?}", outcome.dials);
    assert_eq!((outcome.ejected, outcome.ejections[0]), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nobody_starves_and_at_most_half_are_ejected(
        agents in prop::collection::vec(
            (1_u32..800, prop::sample::select(vec![0_u32, 0, 0, 10, 60, 100]))
                .prop_map(|(took, fails)| Behavior { took: MS * took, fails }),
            1..12,
        ),
        rate in 5_u32..60,
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let outcome = runtime.block_on(simulate(&agents, rate, Duration::from_secs(300), seed));
        prop_assert!(outcome.ejected <= agents.len() / 2, "{} of {}", outcome.ejected, agents.len());
        for (n, dials) in outcome.dials.iter().enumerate() {
            prop_assert!(*dials > 0, "{n} starves: {:?}", outcome.dials);
            prop_assert!(agents[n].fails > 0 || outcome.ejections[n] == 0, "{n} is ejected without a failure");
        }
    }
}
