//! Finds the process that holds a connection in `/proc`, to prove which process dialed an endpoint; and reads socket options.

use std::collections::{BTreeSet, HashSet};
use std::fs::{read_dir, read_link, read_to_string};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use socket2::SockRef;

/// The kernel's number for an established connection.
const ESTABLISHED: &str = "01";

/// The number of established IPv4 connections to `remote` that the process `pid` holds.
pub fn connections(pid: u32, remote: SocketAddr) -> Result<usize> {
    let mut own = HashSet::new();
    for entry in read_dir(format!("/proc/{pid}/fd")).context("the process is gone")? {
        // A descriptor may be closed between the listing and the read.
        let Ok(target) = read_link(entry?.path()) else { continue };
        let inode = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
        own.extend(inode.map(ToOwned::to_owned));
    }
    let table = read_to_string(format!("/proc/{pid}/net/tcp")).context("the process is gone")?;
    Ok(table
        .lines()
        .skip(1)
        .filter_map(row)
        .filter(|(peer, inode)| *peer == remote && own.contains(*inode))
        .count())
}

/// The values of an option of the TCP connections of process `pid` that have `port` at either end, each value once. The process
/// must be a child of this process, or one that may be traced.
pub fn options<T: Ord>(
    pid: u32,
    port: u16,
    option: impl Fn(&SockRef<'_>) -> std::io::Result<T>,
) -> Result<BTreeSet<T>> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?;
    let process = pidfd_open(process, PidfdFlags::empty()).context("the process is gone")?;
    let mut values = BTreeSet::new();
    for entry in read_dir(format!("/proc/{pid}/fd")).context("the process is gone")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let descriptor = match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            // The descriptor was closed meanwhile.
            Err(Errno::BADF) => continue,
            Err(error) => return Err(error).context("a descriptor of another process (pidfd_getfd)"),
        };
        // A listener, or a descriptor that is no socket, has no peer.
        let socket = SockRef::from(&descriptor);
        let (Ok(near), Ok(far)) = (socket.local_addr(), socket.peer_addr()) else { continue };
        let mut ports = [near, far].into_iter().filter_map(|end| end.as_socket()).map(|end| end.port());
        if ports.any(|end| end == port) {
            values.insert(option(&socket)?);
        }
    }
    Ok(values)
}

/// The remote address and the inode of an established connection.
fn row(line: &str) -> Option<(SocketAddr, &str)> {
    let mut words = line.split_whitespace().skip(2);
    let (address, port) = words.next()?.split_once(':')?;
    if words.next()? != ESTABLISHED {
        return None;
    }
    // The kernel prints the address as one number in the machine's byte order.
    let address = Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.to_ne_bytes());
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(IpAddr::V4(address), port), words.nth(5)?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::SockRef;

    use super::{connections, options};

    #[test]
    fn connections_are_counted_by_their_remote_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        assert_eq!(connections(std::process::id(), remote).unwrap(), 0);
        let held = [TcpStream::connect(remote).unwrap(), TcpStream::connect(remote).unwrap()];
        assert_eq!(connections(std::process::id(), remote).unwrap(), held.len());
    }

    #[test]
    fn options_are_those_of_connections_with_that_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let bounds =
            || options(std::process::id(), remote.port(), |socket| socket.tcp_notsent_lowat()).unwrap();
        assert!(bounds().is_empty(), "a listener has no peer");
        let held = TcpStream::connect(remote).unwrap();
        SockRef::from(&held).set_tcp_notsent_lowat(77_777).unwrap();
        assert!(bounds().contains(&77_777));
    }
}
