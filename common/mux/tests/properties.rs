//! Random schedules of two honest cores: more connections than can be explored, with losses, delays and cancels.

mod sim;

use mux::{Limits, Negotiated, Windows};
use proptest::prelude::*;
use sim::scenario::{Plan, Scenario, Step, tight};
use sim::world::{Action, World};

fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn script(ends: bool) -> impl Strategy<Value = Vec<Step>> {
    let (none, closed) = if ends { (0, 2) } else { (2, 0) };
    let end = prop_oneof![
        none => Just(None),
        3 => Just(Some(Step::Eof)),
        closed => Just(Some(Step::Closed)),
        1 => Just(Some(Step::Fail)),
    ];
    (prop::collection::vec((1u8..6).prop_map(Step::Send), 0..5), end).prop_map(|(mut steps, end)| {
        steps.extend(end);
        steps
    })
}

fn plans() -> impl Strategy<Value = Plan> {
    let chance = |percent: u32| prop::bool::weighted(f64::from(percent) / 100.0);
    (script(true), script(false), chance(10), chance(15), (chance(10), chance(10)), (chance(5), chance(5)))
        .prop_map(
            |(
                frontend,
                endpoint,
                refused,
                abandon,
                (frontend_breaks, endpoint_breaks),
                (frontend_stuck, endpoint_stuck),
            )| Plan {
                frontend,
                endpoint,
                refused,
                abandon,
                frontend_breaks,
                endpoint_breaks,
                frontend_stuck,
                endpoint_stuck,
                endpoint_echoes: false,
            },
        )
}

fn worlds() -> impl Strategy<Value = Scenario> {
    let limits = prop_oneof![
        Just(Limits::default()),
        Just(tight()),
        Just(Limits { soft_cap: 3, hard_cap: 8, link_budget: 12, min_drain: 3, ..Limits::default() }),
    ];
    (
        prop::collection::vec(plans(), 1..12),
        (1usize..6, 1usize..8, 0u8..6),
        (prop::bool::weighted(0.2), any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2)),
        (limits, negotiated(), any::<bool>()),
        (prop_oneof![Just(1), Just(2), Just(u16::MAX)], any::<bool>()),
    )
        .prop_map(
            |(
                plans,
                (lane, chunk, hurried_ticks),
                (loss, drain, ignores_dial_cls, closes_twice),
                (limits, negotiated, high_bdp),
                (sip, batches),
            )| {
                // With flow control a stalled reader may block its sender without end, unless the frontend abandons the
                // connection.
                let patient = negotiated != Negotiated::default();
                let plans = plans.into_iter().map(|plan| Plan {
                    abandon: plan.abandon || (patient && (plan.frontend_stuck || plan.endpoint_stuck)),
                    ..plan
                });
                Scenario {
                    name: "random",
                    plans: plans.collect(),
                    prompt: false,
                    lane,
                    chunk,
                    sip,
                    batches,
                    hurried_ticks,
                    loss,
                    drain,
                    ignores_dial_cls,
                    closes_twice,
                    calm: false,
                    high_bdp,
                    negotiated,
                    limits,
                }
            },
        )
}

/// Any negotiated terms, with windows from one byte up.
fn negotiated() -> impl Strategy<Value = Negotiated> {
    let windows = (1u32..9, 1u32..9).prop_map(|(receive, send)| Windows { receive, send });
    (prop::option::of(windows), any::<bool>())
        .prop_map(|(credits, half_close)| Negotiated { credits, half_close })
}

/// Whether this action must not happen while a test waits for bytes to move.
fn disturbs(action: Action) -> bool {
    matches!(action, Action::Abandon(_) | Action::Break(..) | Action::StreamLost(_) | Action::Tick)
}

proptest! {
    #![proptest_config(config(1_500))]

    #[test]
    fn random_schedules_keep_the_rules_and_end(
        scenario in worlds(),
        choices in prop::collection::vec(any::<u16>(), 0..600),
    ) {
        let mut world = World::new(&scenario);
        let mut choices = choices.into_iter();
        for step in 0.. {
            prop_assert!(step < 20_000, "it never ends: {world:#?}");
            let actions = world.enabled(&scenario);
            if actions.is_empty() {
                break;
            }
            // A random walk first; then the actions take turns.
            let choice = choices.next().map_or(step, usize::from);
            let action = actions[choice % actions.len()];
            world.apply(&scenario, action).and_then(|()| world.check(&scenario)).map_err(TestCaseError::fail)?;
        }
        world.check_over(&scenario).map_err(TestCaseError::fail)?;
    }

    /// While both ends read and the stream has room, all bytes of the sources arrive without a timer.
    #[test]
    fn bytes_move_without_timers_and_no_wake_up_is_lost(
        sizes in prop::collection::vec((0u8..20, 0u8..20), 1..10),
        lane in 1usize..4,
        chunk in 1usize..8,
        limits in prop_oneof![Just(Limits::default()), Just(tight())],
        (negotiated, high_bdp, batches) in (negotiated(), any::<bool>(), any::<bool>()),
        choices in prop::collection::vec(any::<u16>(), 0..400),
    ) {
        let send = |bytes: u8| if bytes == 0 { Vec::new() } else { vec![Step::Send(bytes)] };
        let plans = sizes
            .iter()
            .map(|(down, up)| Plan { frontend: send(*down), endpoint: send(*up), ..Plan::default() })
            .collect();
        let scenario = Scenario { plans, lane, chunk, batches, negotiated, high_bdp, limits, ..Scenario::default() };
        let mut world = World::new(&scenario);
        let mut choices = choices.into_iter();
        for step in 0.. {
            prop_assert!(step < 20_000, "it never ends");
            let mut actions = world.enabled(&scenario);
            actions.retain(|action| !disturbs(*action));
            if actions.is_empty() {
                break;
            }
            let choice = choices.next().map_or(step, usize::from);
            let action = actions[choice % actions.len()];
            world.apply(&scenario, action).and_then(|()| world.check(&scenario)).map_err(TestCaseError::fail)?;
        }
        for (pair, (down, up)) in world.around.pairs.iter().zip(&sizes) {
            prop_assert_eq!(pair.ends[1].taken, u16::from(*down));
            prop_assert_eq!(pair.ends[0].taken, u16::from(*up));
            prop_assert!(pair.ends.iter().all(|end| !end.unread()));
        }
    }
}
