//! One cell of the grid: a path, a load, and the measurement of one subject.

use std::future::ready;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::emulator::{Conditions, WideArea};
use super::endpoint::Endpoint;
use super::load::Load;
use super::report::Figures;
use super::rig::Subject;
use crate::figures::percentile;
use crate::wait::until;

/// Concurrent bulk transfers in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bulk {
    /// From endpoints to clients.
    Down(usize),
    /// From clients to endpoints.
    Up(usize),
}

impl Bulk {
    /// The number of transfers.
    pub fn connections(self) -> usize {
        let (Self::Down(count) | Self::Up(count)) = self;
        count
    }
}

impl std::fmt::Display for Bulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Down(count) => write!(f, "{count} down"),
            Self::Up(count) => write!(f, "{count} up"),
        }
    }
}

/// The event on the path at the start of the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Nothing.
    None,
    /// The RTT changes.
    Jump(Duration),
    /// No packet arrives for this time.
    Blackout(Duration),
}

/// A path and a load.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The path.
    pub conditions: Conditions,
    /// The bulk transfers.
    pub bulk: Bulk,
    /// The event.
    pub event: Event,
    /// Whether clients dial during the measurement.
    pub dials: bool,
}

/// The durations of the parts of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Before the measurement, for slow start.
    pub warm_up: Duration,
    /// The measurement.
    pub measured: Duration,
    /// The longest wait for outstanding answers after the measurement.
    pub grace: Duration,
}

/// Measures one subject on its own path.
pub fn measure(cell: &Cell, subject: &Subject, timing: Timing) -> Result<Figures> {
    let area = WideArea::new(&cell.conditions)?;
    area.near.block_on(|| run(cell, subject, timing, &area))
}

async fn run(cell: &Cell, subject: &Subject, timing: Timing, area: &WideArea) -> Result<Figures> {
    let rig = subject.start(area).await?;
    let endpoint = Endpoint::start(&area.far, rig.acceptor()?)?;
    let load = Load::start(&rig.dialer()?, endpoint.address, cell.bulk, cell.dials).await?;
    sleep(timing.warm_up).await;
    let bytes = || match cell.bulk {
        Bulk::Down(_) => load.received.load(Ordering::Relaxed),
        Bulk::Up(_) => endpoint.received.load(Ordering::Relaxed),
    };
    let (cpu, before, began) = (rig.cpu()?, bytes(), Instant::now());
    let mut lit = began;
    match cell.event {
        Event::None => {}
        Event::Jump(rtt) => area.set_rtt(rtt),
        Event::Blackout(dark) => {
            area.set_blackout(true);
            sleep(dark).await;
            area.set_blackout(false);
            lit = Instant::now();
        }
    }
    sleep(timing.measured).await;
    let (took, carried) = (began.elapsed(), bytes() - before);
    let used = rig.cpu()?.zip(cpu).map(|(now, before)| (now - before).as_secs_f64());
    let end = Instant::now();
    let unanswered = || load.pings.within(began, end).1 + load.dials.within(began, end).1;
    // Exchanges that stay unanswered are a result, not an error.
    let _ = until("an answer to all", timing.grace, || ready((unanswered() == 0).then_some(()))).await;
    let unanswered = unanswered();
    let (mut pings, mut dials) = (load.pings.within(began, end).0, load.dials.within(began, end).0);
    let millis = |times: &mut Vec<Duration>, percent| {
        percentile(times, percent).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    let again = match cell.event {
        Event::Blackout(_) => load.pings.first_answer(lit).map_or(f64::NAN, |at| (at - began).as_secs_f64()),
        Event::None | Event::Jump(_) => f64::NAN,
    };
    Ok(Figures {
        megabits: carried as f64 * 8.0 / took.as_secs_f64() / 1e6,
        ping_p50: millis(&mut pings, 50),
        ping_p99: millis(&mut pings, 99),
        dial_p99: millis(&mut dials, 99),
        refused: load.refused.load(Ordering::Relaxed) as f64,
        ended: load.ended.load(Ordering::Relaxed) as f64,
        unanswered: unanswered as f64,
        cpu: used.unwrap_or(f64::NAN),
        again,
    })
}
