//! Ports for programs that need a fixed number: leased below the kernel's ephemeral range by lock files.
//!
//! Both programs refuse ports below 1024 and above 49151, so they cannot use port 0. A lease holds an exclusive lock on a file
//! named after the port, so that parallel tests and parallel runs never get the same number. Ports below 32000 cannot collide
//! with outgoing connections.

use std::fs::{File, OpenOptions, create_dir_all};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use rand::RngExt;
use rustix::fs::{FlockOperation, flock};

const FIRST: u16 = 10_000;
const LAST: u16 = 31_999;
const ATTEMPTS: usize = 2_000;

/// A loopback port that no other test uses while the lease is held.
#[derive(Debug)]
pub struct Lease {
    port: u16,
    /// Holds the lock; closing the file releases it.
    _lock: File,
}

impl Lease {
    /// Leases a free port.
    pub fn new() -> Result<Self> {
        let folder = folder();
        create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for _ in 0..ATTEMPTS {
            let port = rand::rng().random_range(FIRST..=LAST);
            if let Some(lease) = Self::try_port(port)? {
                return Ok(lease);
            }
        }
        bail!("no free port between {FIRST} and {LAST} after {ATTEMPTS} attempts")
    }

    fn try_port(port: u16) -> Result<Option<Self>> {
        let path = folder().join(format!("{port}.lock"));
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let free = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
        Ok(free.then_some(Self { port, _lock: lock }))
    }

    /// The port's number.
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn folder() -> PathBuf {
    std::env::temp_dir().join("konnectivity-e2e-ports")
}

#[cfg(test)]
mod tests {
    use super::Lease;

    #[test]
    fn leases_are_distinct_and_within_the_range() {
        let leases: Vec<Lease> = (0..50).map(|_| Lease::new().unwrap()).collect();
        let ports: std::collections::BTreeSet<u16> = leases.iter().map(Lease::port).collect();
        assert_eq!(ports.len(), leases.len());
        assert!(ports.iter().all(|port| (10_000..32_000).contains(port)));
    }
}
