//! Two namespaces joined by a thread that forwards IP packets like a wide area network.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tappers::{Interface, Tun};
use tokio::time::Instant;

use super::line::Line;
use crate::netns::{NEAR, Namespace};

/// The far side's address. The near side's is [`NEAR`].
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 231, 1, 2);

/// The name of the TUN device in both namespaces.
const DEVICE: &str = "wan";

/// Packets that are read from one side before the other side's turn.
const BATCH: usize = 64;

/// Longest wait: the delay until the thread notices its end, or a change.
const LOOK: Duration = Duration::from_millis(20);

/// The conditions of a path.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// RTT of a small packet without queueing.
    pub rtt: Duration,
    /// Fraction of packets that are lost at random in each direction, from 0 to 1.
    pub loss: f64,
    /// Fraction of packets that others overtake in each direction, from 0 to 1.
    pub reorder: f64,
    /// Bits per second in each direction.
    pub rate: u64,
    /// The kernel's congestion control, on both sides.
    pub congestion_control: String,
    /// Seed of the random losses.
    pub seed: u64,
}

/// Conditions that may change while packets flow, and the counters.
#[derive(Debug, Default)]
struct Control {
    /// One-way delay in nanoseconds.
    delay: AtomicU64,
    blackout: AtomicBool,
    stop: AtomicBool,
    lost: AtomicU64,
    forwarded: AtomicU64,
}

/// The two sides and the path between them. Dropping it ends all of them.
#[derive(Debug)]
pub struct WideArea {
    /// The side of the clients and the server.
    pub near: Namespace,
    /// The side of the agent and the endpoints.
    pub far: Namespace,
    control: Arc<Control>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl WideArea {
    /// Joins two new namespaces by a path.
    ///
    /// # Errors
    /// Missing rights, a missing program `ip` or `/dev/net/tun`, or an unknown congestion control.
    pub fn new(conditions: &Conditions) -> Result<Self> {
        let id = format!("knp{:08x}", rand::random::<u32>());
        let (near, near_device) = side(format!("{id}n"), NEAR, FAR, conditions)?;
        let (far, far_device) = side(format!("{id}f"), FAR, NEAR, conditions)?;
        let control = Arc::<Control>::default();
        let line = |seed| Line::new(conditions.rate, conditions.loss, seed).reordering(conditions.reorder);
        let lines = [line(conditions.seed), line(conditions.seed.wrapping_add(1))];
        let shared = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name("wan".into())
            .spawn(move || Forwarding::new([near_device, far_device], lines).run(&shared))?;
        let area = Self { near, far, control, thread: Some(thread) };
        area.set_rtt(conditions.rtt);
        Ok(area)
    }

    /// Changes the RTT for packets that enter the path from now on.
    pub fn set_rtt(&self, rtt: Duration) {
        let nanos = u64::try_from((rtt / 2).as_nanos()).unwrap_or(u64::MAX);
        self.control.delay.store(nanos, Ordering::Relaxed);
    }

    /// Drops every packet that enters the path, or stops dropping.
    pub fn set_blackout(&self, dark: bool) {
        self.control.blackout.store(dark, Ordering::Relaxed);
    }

    /// The numbers of packets that have arrived and that were lost, over both directions.
    pub fn counts(&self) -> (u64, u64) {
        (self.control.forwarded.load(Ordering::Relaxed), self.control.lost.load(Ordering::Relaxed))
    }
}

impl Drop for WideArea {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => eprintln!("the path between the namespaces failed: {error}"),
            Some(Err(_)) => eprintln!("the path between the namespaces panicked"),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

/// A namespace with its end of the path. A TUN device belongs to the namespace of the thread that opens it.
fn side(name: String, own: Ipv4Addr, peer: Ipv4Addr, conditions: &Conditions) -> Result<(Namespace, File)> {
    let side = Namespace::add(name, own)?;
    let device = side.enter(|| {
        let device = Tun::new_named(Interface::new(DEVICE)?).context("cannot open /dev/net/tun")?;
        Ok(File::from(device.as_fd().try_clone_to_owned()?))
    })?;
    rustix::io::ioctl_fionbio(&device, true)?;
    side.ip(&["addr", "add", &own.to_string(), "dev", DEVICE])?;
    // A long device queue, so that only the path's own queue overflows.
    side.ip(&["link", "set", "dev", DEVICE, "mtu", "1500", "txqueuelen", "10000", "up"])?;
    // Set on the route, because a namespace's sysctl permits only the algorithms that the machine permits to all users.
    let algorithm = conditions.congestion_control.as_str();
    side.ip(&["route", "add", &peer.to_string(), "dev", DEVICE, "congctl", algorithm])
        .with_context(|| format!("a route with the congestion control {algorithm}"))?;
    // TCP does not keep metrics of one connection for the next.
    side.exec(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save"])?;
    Ok((side, device))
}

/// The thread's state.
struct Forwarding {
    devices: [File; 2],
    /// From each device to the other one.
    lines: [Line; 2],
    /// Packets in transit, with their arrival times.
    flying: [VecDeque<(Duration, Box<[u8]>)>; 2],
    began: Instant,
}

impl Forwarding {
    fn new(devices: [File; 2], lines: [Line; 2]) -> Self {
        Self { devices, lines, flying: Default::default(), began: Instant::now() }
    }

    fn run(mut self, control: &Control) -> io::Result<()> {
        // Every measurement depends on this thread. Without the rights it keeps the normal priority.
        let _ = rustix::process::setpriority_process(None, -19);
        while !control.stop.load(Ordering::Relaxed) {
            let mut full = false;
            for from in 0..2 {
                full |= self.take(from, control)?;
                self.deliver(from, control);
            }
            if !full {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Reads packets that one side sends. Returns whether more may be waiting.
    fn take(&mut self, from: usize, control: &Control) -> io::Result<bool> {
        let mut packet = [0; 2048];
        for _ in 0..BATCH {
            let size = match self.devices[from].read(&mut packet) {
                Ok(size) => size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            let delay = Duration::from_nanos(control.delay.load(Ordering::Relaxed));
            let due = match control.blackout.load(Ordering::Relaxed) {
                true => None,
                false => self.lines[from].admit(self.began.elapsed(), delay, size),
            };
            match due {
                Some(due) => {
                    let line = &mut self.flying[from];
                    let place = line.partition_point(|(other, _)| *other <= due);
                    line.insert(place, (due, packet[..size].into()));
                }
                None => drop(control.lost.fetch_add(1, Ordering::Relaxed)),
            }
        }
        Ok(true)
    }

    /// Writes the packets that have arrived to the other side.
    fn deliver(&mut self, from: usize, control: &Control) {
        let now = self.began.elapsed();
        while let Some((_, packet)) = self.flying[from].pop_front_if(|(due, _)| *due <= now) {
            // The kernel refuses packets while the device is down: they are lost, as on a wire.
            let count = match self.devices[1 - from].write(&packet) {
                Ok(_) => &control.forwarded,
                Err(_) => &control.lost,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until a packet is sent, or arrives.
    fn wait(&self) -> io::Result<()> {
        let next = self.flying.iter().filter_map(|line| line.front()).map(|(due, _)| *due).min();
        let wait = next.map_or(LOOK, |due| due.saturating_sub(self.began.elapsed()).min(LOOK));
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let mut devices =
            [&self.devices[0], &self.devices[1]].map(|device| PollFd::new(device, PollFlags::IN));
        match poll(&mut devices, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
