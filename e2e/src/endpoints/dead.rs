//! Addresses that do not accept: one refuses connections, one does not answer.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use socket2::{Domain, Socket, Type};

/// A port that is bound but not listening: the kernel refuses dials, and no other process can bind it.
#[derive(Debug)]
pub struct Refusing {
    address: SocketAddr,
    _socket: Socket,
}

impl Refusing {
    /// Takes a free port.
    pub fn new() -> Result<Self> {
        let (socket, address) = bound()?;
        Ok(Self { address, _socket: socket })
    }

    /// The address as `host:port`.
    pub fn target(&self) -> String {
        self.address.to_string()
    }
}

/// A listener with a full queue: the kernel drops further SYNs, so that a dial gets no answer.
#[derive(Debug)]
pub struct FullQueue {
    address: SocketAddr,
    _socket: Socket,
    _queued: Vec<TcpStream>,
}

impl FullQueue {
    /// Listens with a queue of zero and fills it. Blocks for a moment.
    pub fn new() -> Result<Self> {
        let (socket, address) = bound()?;
        socket.listen(0)?;
        let mut queued = Vec::new();
        for _ in 0..16 {
            match TcpStream::connect_timeout(&address, Duration::from_millis(150)) {
                Ok(stream) => queued.push(stream),
                Err(_) => return Ok(Self { address, _socket: socket, _queued: queued }),
            }
        }
        bail!("a queue of zero took 16 connections")
    }

    /// The address as `host:port`.
    pub fn target(&self) -> String {
        self.address.to_string()
    }
}

fn bound() -> Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let address = socket.local_addr()?.as_socket().context("an IP socket has an IP address")?;
    Ok((socket, address))
}
