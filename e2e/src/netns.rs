//! A private network: namespaces joined by a router that can drop packets.
//!
//! ```text
//!   near 10.231.0.2 ──── router ──┬── far 10.231.1.2
//!                                 └── far 10.231.2.2 ...
//! ```
//!
//! The network has no route out. A path whose packets are dropped looks like a dead host to both ends: no packet arrives,
//! nothing is refused, no connection is closed. Needs root, and `ip` from iproute2.

use std::fs::File;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpListener, TcpStream};

use crate::figures::say;
use crate::wait::DEADLINE;

/// The near side's address.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 231, 0, 2);

/// An address of the router that is the same for all sides.
pub const VIRTUAL: Ipv4Addr = Ipv4Addr::new(10, 231, 255, 1);

/// The near side, a router, and some far sides. Dropping it deletes everything.
#[derive(Debug)]
pub struct Network {
    /// The namespace of the servers.
    pub near: Namespace,
    /// The namespaces of the agents.
    pub far: Vec<Namespace>,
    /// The namespace of the router.
    pub router: Namespace,
}

/// `None`, and a message, if this machine cannot make it. In CI an error is returned instead.
pub fn if_possible<T>(instead: &str, made: Result<T>) -> Result<Option<T>> {
    match made {
        Err(error) if std::env::var_os("CI").is_none_or(|value| value != "true") => {
            say(instead, format!("{error:#}"));
            Ok(None)
        }
        made => made.map(Some),
    }
}

/// One network namespace with its address.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// Its address on the link to the router.
    pub address: IpAddr,
}

impl Network {
    /// Joins a near side and `count` far sides.
    ///
    /// # Errors
    /// Missing rights, a missing program `ip`, or a kernel without namespaces.
    pub fn new(count: u8) -> Result<Self> {
        let id = format!("knp{:08x}", rand::random::<u32>());
        let router = Namespace::add(format!("{id}r"), Ipv4Addr::LOCALHOST)?;
        router.exec(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        router.ip(&["addr", "add", &format!("{VIRTUAL}/32"), "dev", "lo"])?;
        let near = router.join(format!("{id}n"), 0)?;
        let far =
            (1..=count).map(|number| router.join(format!("{id}f{number}"), number)).collect::<Result<_>>()?;
        Ok(Self { near, far, router })
    }

    /// From now on drops every packet from and to a far side.
    pub fn swallow(&self, far: &Namespace) -> Result<()> {
        let address = far.address.to_string();
        self.router.ip(&["route", "add", "blackhole", &address])?;
        self.router.ip(&["rule", "add", "from", &address, "blackhole"])
    }

    /// Stops dropping packets.
    pub fn heal(&self, far: &Namespace) -> Result<()> {
        let address = far.address.to_string();
        self.router.ip(&["rule", "del", "from", &address, "blackhole"])?;
        self.router.ip(&["route", "del", "blackhole", &address])
    }
}

impl Namespace {
    pub(crate) fn add(name: String, address: Ipv4Addr) -> Result<Self> {
        run(&["ip", "netns", "add", &name])?;
        let namespace = Self { name, address: address.into() };
        namespace.ip(&["link", "set", "dev", "lo", "up"])?;
        Ok(namespace)
    }

    /// A namespace beside this one, on a separate network.
    fn join(&self, name: String, network: u8) -> Result<Self> {
        let side = Self::add(name, Ipv4Addr::new(10, 231, network, 2))?;
        let (gateway, port) = (Ipv4Addr::new(10, 231, network, 1).to_string(), format!("port{network}"));
        side.ip(&["link", "add", "uplink", "type", "veth", "peer", "name", &port, "netns", &self.name])?;
        side.ip(&["addr", "add", &format!("{}/24", side.address), "dev", "uplink"])?;
        side.ip(&["link", "set", "dev", "uplink", "up"])?;
        self.ip(&["addr", "add", &format!("{gateway}/24"), "dev", &port])?;
        self.ip(&["link", "set", "dev", &port, "up"])?;
        side.ip(&["route", "add", "10.231.0.0/16", "via", &gateway])?;
        Ok(side)
    }

    /// Runs a function inside: its sockets and processes belong to the namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = PathBuf::from("/run/netns").join(&self.name);
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let inside = move || {
            // The thread ends with the function, and nothing else runs on it.
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .context("cannot enter the namespace")?;
            work()
        };
        let ended = thread::scope(|scope| scope.spawn(inside).join());
        ended.map_err(|_| anyhow::anyhow!("a panic inside the namespace"))?
    }

    /// A connection from inside the namespace, for use anywhere. Blocks until it is established.
    pub fn connect(&self, address: SocketAddr) -> Result<TcpStream> {
        let stream = self.enter(|| Ok(std::net::TcpStream::connect_timeout(&address, DEADLINE)?))?;
        stream.set_nonblocking(true)?;
        Ok(TcpStream::from_std(stream)?)
    }

    /// A listener inside the namespace, for use anywhere.
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        let listener = self.enter(|| Ok(std::net::TcpListener::bind(address)?))?;
        listener.set_nonblocking(true)?;
        Ok(TcpListener::from_std(listener)?)
    }

    /// Runs a future inside, on a separate runtime.
    pub fn block_on<T: Send, F: Future<Output = Result<T>>>(
        &self,
        work: impl FnOnce() -> F + Send,
    ) -> Result<T> {
        self.enter(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .context("cannot start a runtime")?;
            let done = runtime.block_on(work());
            runtime.shutdown_background();
            done
        })
    }

    pub(crate) fn ip(&self, args: &[&str]) -> Result<()> {
        run(&[&["ip", "-n", &self.name], args].concat())
    }

    pub(crate) fn exec(&self, args: &[&str]) -> Result<()> {
        run(&[&["ip", "netns", "exec", &self.name], args].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Processes inside keep the namespace alive while they run; an error is ignored.
        let _ = run(&["ip", "netns", "del", &self.name]);
    }
}

/// The network namespace of a thread.
#[derive(Debug)]
pub struct Place(File);

impl Place {
    /// The namespace of the calling thread.
    pub fn here() -> std::io::Result<Self> {
        File::open("/proc/thread-self/ns/net").map(Self)
    }

    /// Runs a function in that namespace, and returns to the present one.
    pub fn and_in<T>(&self, work: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        let home = Self::here()?;
        if self.0.metadata()?.ino() == home.0.metadata()?.ino() {
            return work();
        }
        self.go()?;
        let done = work();
        home.go()?;
        done
    }

    fn go(&self) -> std::io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

fn run(words: &[&str]) -> Result<()> {
    let (program, args) = words.split_first().context("no program")?;
    let output =
        Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", words.join(" "), said.trim());
    Ok(())
}
