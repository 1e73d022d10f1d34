//! Every interleaving of small systems: dials, cancels, data in both directions, closes, failures, losses, time-outs,
//! queues above their caps, and peers that behave as Go's do. The module `sim` has the rules.

mod sim;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mux::{Limits, Negotiated};
use sim::explore::explore;
use sim::scenario::Step::{Closed, Eof, Fail, Send};
use sim::scenario::{Plan, Scenario, native_peers, plan, tight};

/// The whole run must visit at least this many distinct states.
const LEAST: usize = 1_000_000;

fn scenarios() -> Vec<Scenario> {
    let both_close = plan(&[Send(1), Eof], &[Send(1), Eof]);
    let fickle = Plan { abandon: true, ..both_close.clone() };
    let refused = Plan { refused: true, ..Plan::default() };
    let one = |name, plan| Scenario { name, plans: vec![plan], ..Scenario::default() };
    let two = |name, first, second| Scenario {
        name,
        plans: vec![first, second],
        prompt: true,
        ..Scenario::default()
    };
    vec![
        two("both close at once", both_close, plan(&[Eof], &[Send(1), Eof])),
        two("each end closes one", plan(&[Send(1), Eof], &[Send(1)]), plan(&[Send(1)], &[Send(1), Eof])),
        one("more bytes than the lanes hold", plan(&[Send(3), Send(2), Eof], &[Send(2), Send(3), Eof])),
        two(
            "a gRPC frontend's close",
            plan(&[Send(1), Closed], &[Send(2), Send(1)]),
            plan(&[Closed], &[Eof]),
        ),
        two("a dial is given up", fickle.clone(), refused.clone()),
        two("two are given up", fickle.clone(), Plan { abandon: true, ..plan(&[], &[Send(1), Eof]) }),
        Scenario { ignores_dial_cls: true, ..one("an agent that ignores DIAL_CLS", fickle.clone()) },
        Scenario {
            calm: true,
            limits: Limits { discard_budget: 1, discard_quantum: 1, ..Limits::default() },
            ..one(
                "little is discarded at a time",
                Plan {
                    endpoint_echoes: true,
                    ..plan(&[Send(2), Send(2), Eof], &[Send(1), Send(1), Send(1), Send(1)])
                },
            )
        },
        Scenario {
            batches: true,
            sip: 1,
            lane: 3,
            ..one("bytes and closes in one turn", plan(&[Send(3), Send(1), Eof], &[Send(2), Send(2), Closed]))
        },
        Scenario {
            batches: true,
            sip: 1,
            loss: true,
            ..one(
                "bytes and the loss in one turn",
                Plan { endpoint_breaks: true, ..plan(&[Send(3), Eof], &[Send(2), Eof]) },
            )
        },
        Scenario {
            batches: true,
            negotiated: native_peers(),
            ..one("bytes and FIN in one turn", plan(&[Send(3), Eof], &[Send(2), Send(1), Eof]))
        },
        Scenario {
            ignores_dial_cls: true,
            ..two(
                "an agent that ignores DIAL_CLS, and another dial",
                fickle.clone(),
                plan(&[Send(1), Eof], &[]),
            )
        },
        Scenario {
            closes_twice: true,
            ..two("CLOSE_REQ comes twice", fickle.clone(), plan(&[Eof], &[Send(1)]))
        },
        Scenario {
            closes_twice: true,
            hurried_ticks: 2,
            limits: tight(),
            ..one("CLOSE_REQ comes twice, late", fickle.clone())
        },
        Scenario {
            hurried_ticks: 2,
            limits: Limits { close_pause: Duration::from_secs(1), ..Limits::default() },
            ..one(
                "CLOSE_REQ follows the last DATA after a pause",
                Plan { abandon: true, frontend_breaks: true, ..plan(&[Send(1), Eof], &[Send(1), Eof]) },
            )
        },
        two(
            "sources and sinks break",
            Plan { frontend_breaks: true, ..plan(&[Send(1), Fail], &[Send(1), Eof]) },
            Plan { endpoint_breaks: true, ..plan(&[Send(1), Eof], &[Fail]) },
        ),
        one(
            "either sink breaks",
            Plan { frontend_breaks: true, endpoint_breaks: true, ..plan(&[Send(2), Eof], &[Send(2), Eof]) },
        ),
        Scenario {
            loss: true,
            drain: true,
            prompt: true,
            hurried_ticks: 1,
            ..one("the stream is lost", fickle)
        },
        Scenario {
            loss: true,
            ..two("the stream is lost among two", plan(&[Send(1), Eof], &[]), plan(&[], &[Send(1), Eof]))
        },
        Scenario {
            hurried_ticks: 4,
            limits: tight(),
            ..one("impatience", plan(&[Send(2), Eof], &[Send(2), Send(1), Eof]))
        },
        Scenario {
            hurried_ticks: 2,
            limits: tight(),
            ..two("endpoints that are slow", plan(&[Send(2), Send(2), Eof], &[]), plan(&[Send(2), Eof], &[]))
        },
        Scenario {
            hurried_ticks: 1,
            limits: tight(),
            ..two(
                "frontends that are slow",
                plan(&[], &[Send(2), Send(2), Eof]),
                Plan { abandon: true, ..plan(&[Closed], &[Send(2)]) },
            )
        },
        Scenario {
            hurried_ticks: 1,
            closes_twice: true,
            ..two(
                "an endpoint that takes nothing",
                Plan { endpoint_stuck: true, ..plan(&[Send(2), Eof], &[Send(1)]) },
                plan(&[Send(1), Eof], &[]),
            )
        },
        Scenario {
            hurried_ticks: 1,
            limits: tight(),
            ..two(
                "sinks that take nothing hold up the link",
                Plan {
                    endpoint_stuck: true,
                    frontend_stuck: true,
                    ..plan(&[Send(2), Send(1)], &[Send(2), Eof])
                },
                plan(&[Send(2), Eof], &[]),
            )
        },
        Scenario {
            calm: true,
            ..one(
                "an endpoint that echoes into a closed connection",
                Plan {
                    endpoint_echoes: true,
                    ..plan(&[Send(2), Send(2), Eof], &[Send(1), Send(1), Send(1), Send(1)])
                },
            )
        },
        Scenario {
            ignores_dial_cls: true,
            ..two(
                "an agent that ignores DIAL_CLS, and endpoints that stay",
                Plan { abandon: true, ..plan(&[Send(1), Eof], &[Send(1)]) },
                Plan { abandon: true, ..plan(&[Eof], &[Send(1)]) },
            )
        },
        Scenario {
            plans: vec![
                Plan { abandon: true, ..plan(&[Eof], &[]) },
                Plan { abandon: true, ..plan(&[Eof], &[]) },
            ],
            ..one("a late dial and a place that is used again", Plan::default())
        },
        Scenario {
            hurried_ticks: 1,
            ..one(
                "sinks that break while their sources stay",
                Plan { frontend_breaks: true, ..plan(&[Send(1), Send(1)], &[Send(1), Send(1)]) },
            )
        },
        Scenario {
            calm: true,
            negotiated: native_peers(),
            ..one("half-close, each in its time", plan(&[Send(3), Eof], &[Send(3), Eof]))
        },
        Scenario {
            calm: true,
            negotiated: native_peers(),
            ..two("half-close of two", plan(&[Send(2), Eof], &[Send(1), Eof]), plan(&[Eof], &[Send(2), Eof]))
        },
        Scenario {
            negotiated: native_peers(),
            hurried_ticks: 2,
            limits: tight(),
            ..two(
                "half-close that nobody answers",
                plan(&[Send(2), Eof], &[Send(1)]),
                Plan { abandon: true, ..plan(&[], &[Send(1), Eof]) },
            )
        },
        Scenario {
            negotiated: native_peers(),
            ..two(
                "half-closed ones break",
                Plan { frontend_breaks: true, ..plan(&[Send(1), Eof], &[Send(1), Eof]) },
                Plan { endpoint_breaks: true, ..plan(&[Send(2), Eof], &[Eof]) },
            )
        },
        Scenario {
            loss: true,
            negotiated: native_peers(),
            ..one("the stream is lost in half-close", plan(&[Send(2), Eof], &[Send(2), Eof]))
        },
        Scenario {
            negotiated: native_peers(),
            hurried_ticks: 1,
            ..two(
                "who takes nothing holds up nobody",
                // Otherwise the endpoint would correctly wait without end.
                Plan { endpoint_stuck: true, abandon: true, ..plan(&[Send(3), Eof], &[]) },
                plan(&[Send(3), Eof], &[Send(1), Eof]),
            )
        },
        Scenario {
            negotiated: Negotiated { half_close: false, ..native_peers() },
            ..one("credits alone", plan(&[Send(3), Send(2), Eof], &[Send(3), Send(2), Eof]))
        },
        Scenario {
            loss: true,
            hurried_ticks: 1,
            ..one(
                "what arrived before a loss",
                Plan { frontend_breaks: true, ..plan(&[Send(2), Eof], &[Send(2), Send(1)]) },
            )
        },
        Scenario {
            plans: vec![plan(&[Eof], &[]), refused, Plan { abandon: true, ..plan(&[], &[Eof]) }],
            drain: true,
            ..two("three dials, one drain", Plan::default(), Plan::default())
        },
    ]
}

#[test]
fn all_interleavings_keep_the_rules() {
    let limit = std::env::var("MUX_STATES").ok().and_then(|text| text.parse::<usize>().ok());
    let (next, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let scenarios = scenarios();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (states, all) = explore(scenario, limit.unwrap_or(usize::MAX));
                    println!(
                        "{states:>9} states{}: {}",
                        if all { "" } else { " (cut short)" },
                        scenario.name
                    );
                    total.fetch_add(states, Ordering::Relaxed);
                }
            });
        }
    });
    let total = total.into_inner();
    println!("{total:>9} distinct states in all");
    assert!(limit.is_some() || total >= LEAST, "{total} states are fewer than {LEAST}");
}
