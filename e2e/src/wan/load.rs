//! The load on a subject: bulk transfers, and pings and dials at fixed times, whether earlier ones were answered or not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::cell::Bulk;
use super::endpoint::{DOWNLOAD, ECHO, PIECE, UPLOAD, count};
use super::rig::Dialer;

const PING: [u8; 64] = [7; 64];
const PING_EVERY: Duration = Duration::from_millis(20);
const DIAL_EVERY: Duration = Duration::from_millis(100);

/// Exchanges: the start of each, and the time until its answer.
#[derive(Debug, Default)]
pub(super) struct Exchanges(Mutex<Vec<(Instant, Option<Duration>)>>);

impl Exchanges {
    fn begin(&self) -> usize {
        let mut all = self.0.lock();
        all.push((Instant::now(), None));
        all.len() - 1
    }

    fn answer(&self, number: usize) {
        if let Some((began, took)) = self.0.lock().get_mut(number) {
            *took = Some(began.elapsed());
        }
    }

    /// The times of the exchanges that began within a window, and the number of unanswered ones, which count with their age.
    pub(super) fn within(&self, from: Instant, to: Instant) -> (Vec<Duration>, u64) {
        let all = self.0.lock();
        let inside = all.iter().filter(|(began, _)| (from..to).contains(began));
        let times: Vec<_> = inside.clone().map(|(began, took)| took.unwrap_or(began.elapsed())).collect();
        (times, inside.filter(|(_, took)| took.is_none()).count() as u64)
    }

    /// When the first exchange that began after `since` was answered.
    pub(super) fn first_answer(&self, since: Instant) -> Option<Instant> {
        let all = self.0.lock();
        all.iter()
            .filter(|(began, _)| *began >= since)
            .filter_map(|(began, took)| Some(*began + (*took)?))
            .min()
    }
}

/// The load on one subject. Dropping it ends all connections.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Bytes of downloads so far.
    pub(super) received: Arc<AtomicU64>,
    pub(super) pings: Arc<Exchanges>,
    pub(super) dials: Arc<Exchanges>,
    /// Connections that ended unexpectedly, and dials that failed.
    pub(super) ended: Arc<AtomicU64>,
    pub(super) refused: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Load {
    /// Dials all connections, then starts all transfers.
    pub(super) async fn start(dialer: &Dialer, to: SocketAddr, bulk: Bulk, dials: bool) -> Result<Self> {
        let mut load = Self::default();
        let mut echo = dialer.dial(to).await?;
        echo.write_u8(ECHO).await?;
        echo.flush().await?;
        let mut conns = Vec::new();
        for _ in 0..bulk.connections() {
            conns.push(dialer.dial(to).await?);
        }
        for conn in conns {
            let received = Arc::clone(&load.received);
            load.until_it_ends(async move {
                let _ = transfer(conn, bulk, &received).await;
            });
        }
        let pings = Arc::clone(&load.pings);
        load.until_it_ends(async move {
            let _ = ping(echo, &pings).await;
        });
        if dials {
            load.tasks.spawn(dial(dialer.clone(), to, Arc::clone(&load.dials), Arc::clone(&load.refused)));
        }
        Ok(load)
    }

    /// Runs a connection that should not end, and counts its end.
    fn until_it_ends(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        let ended = Arc::clone(&self.ended);
        self.tasks.spawn(async move {
            connection.await;
            ended.fetch_add(1, Ordering::Relaxed);
        });
    }
}

async fn transfer(mut conn: crate::frontend::Conn, bulk: Bulk, received: &AtomicU64) -> std::io::Result<()> {
    if let Bulk::Down(_) = bulk {
        conn.write_u8(DOWNLOAD).await?;
        conn.flush().await?;
        return count(&mut conn, received).await;
    }
    conn.write_u8(UPLOAD).await?;
    let zeros = vec![0; PIECE];
    loop {
        conn.write_all(&zeros).await?;
    }
}

async fn ping(conn: crate::frontend::Conn, pings: &Exchanges) -> std::io::Result<()> {
    let (mut input, mut output) = tokio::io::split(conn);
    let send = async {
        let mut ticks = interval(PING_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            pings.begin();
            output.write_all(&PING).await?;
            output.flush().await?;
        }
    };
    let receive = async {
        let mut answer = PING;
        for number in 0.. {
            input.read_exact(&mut answer).await?;
            pings.answer(number);
        }
        Ok(())
    };
    tokio::select! {
        ended = send => ended,
        ended = receive => ended,
    }
}

async fn dial(dialer: Dialer, to: SocketAddr, dials: Arc<Exchanges>, refused: Arc<AtomicU64>) {
    let mut ticks = interval(DIAL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut under_way = JoinSet::new();
    loop {
        ticks.tick().await;
        while under_way.try_join_next().is_some() {}
        let (dialer, dials, refused) = (dialer.clone(), Arc::clone(&dials), Arc::clone(&refused));
        under_way.spawn(async move {
            let number = dials.begin();
            match dialer.dial(to).await {
                Ok(_) => dials.answer(number),
                Err(_) => drop(refused.fetch_add(1, Ordering::Relaxed)),
            }
        });
    }
}
