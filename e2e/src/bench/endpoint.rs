//! One endpoint for all cases: the client's first bytes are a command.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::rig::again;
use crate::ports::Lease;
use crate::process::Process;
use crate::wait::{DEADLINE, until};

/// The size of one read or write.
pub(super) const PIECE: usize = 256 * 1024;

/// Send buffer of an endpoint that sends endlessly, in bytes.
const POURED: usize = 128 * 1024;

/// How long an endpoint that reads nothing holds its connection: longer than its case lasts.
const HELD: Duration = Duration::from_secs(40);

/// The purpose of a connection. A command is one letter and a byte count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Send that many bytes.
    Download(u64),
    /// Send endlessly from a small send buffer: a thousand connections with stalled readers would otherwise take gigabytes of
    /// the kernel's TCP memory, which in a cluster is spread over as many machines.
    Pour,
    /// Read that many bytes, then send one.
    Upload(u64),
    /// Send everything back.
    Echo,
    /// Read nothing more.
    Hold,
}

impl Command {
    /// Sends the command to the endpoint.
    pub(super) async fn send(self, conn: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        let (letter, count) = match self {
            Self::Download(count) => (b'D', count),
            Self::Pour => (b'P', 0),
            Self::Upload(count) => (b'U', count),
            Self::Echo => (b'E', 0),
            Self::Hold => (b'H', 0),
        };
        let mut bytes = [0; 9];
        bytes[0] = letter;
        bytes[1..].copy_from_slice(&count.to_be_bytes());
        conn.write_all(&bytes).await?;
        Ok(conn.flush().await?)
    }

    async fn read(conn: &mut (impl AsyncRead + Unpin)) -> Result<Self> {
        let letter = conn.read_u8().await?;
        let count = conn.read_u64().await?;
        match letter {
            b'D' => Ok(Self::Download(count)),
            b'P' => Ok(Self::Pour),
            b'U' => Ok(Self::Upload(count)),
            b'E' => Ok(Self::Echo),
            b'H' => Ok(Self::Hold),
            other => anyhow::bail!("no command {other}"),
        }
    }
}

/// Sends `count` zeros.
pub(super) async fn send_zeros(conn: &mut (impl AsyncWrite + Unpin), count: u64) -> Result<()> {
    let piece = vec![0; PIECE];
    let mut left = count;
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        conn.write_all(piece.get(..size).unwrap_or(&piece)).await?;
        left -= size as u64;
    }
    Ok(conn.flush().await?)
}

/// Reads exactly `count` bytes and drops them.
pub(super) async fn skip(conn: &mut (impl AsyncRead + Unpin), count: u64) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut left = count;
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let got = conn.read(piece.get_mut(..size).unwrap_or_default()).await?;
        anyhow::ensure!(got > 0, "the connection ended with {left} bytes missing");
        left -= got as u64;
    }
    Ok(())
}

/// The endpoint; dropping the handle ends it.
#[derive(Debug)]
pub struct CommandEndpoint {
    address: SocketAddr,
    served: Served,
}

/// Where the endpoint runs.
#[derive(Debug)]
enum Served {
    Here(AbortHandle),
    Apart { _process: Box<Process>, _port: Lease },
}

/// Serves on a port of the loopback interface until the process ends.
pub async fn endpoint(port: u16) -> Result<()> {
    serve_all(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?).await
}

async fn serve_all(listener: TcpListener) -> Result<()> {
    // The connections end with the endpoint: unread bytes of held ones would disturb the next measurement.
    let mut serving = JoinSet::new();
    loop {
        let (conn, _) = listener.accept().await?;
        let _ = conn.set_nodelay(true);
        serving.spawn(serve(conn));
        while serving.try_join_next().is_some() {}
    }
}

impl CommandEndpoint {
    /// Listens on a free port of the loopback interface.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(serve_all(listener));
        Ok(Self { address, served: Served::Here(task.abort_handle()) })
    }

    /// Starts the endpoint in a separate process with its own descriptors.
    pub async fn apart() -> Result<Self> {
        let port = Lease::new()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.port()));
        let process = again("the endpoint", &["endpoint", &port.port().to_string()])?;
        until("the endpoint", DEADLINE, || async { TcpStream::connect(address).await.ok() })
            .await
            .map_err(|error| process.explain(&error))?;
        Ok(Self { address, served: Served::Apart { _process: Box::new(process), _port: port } })
    }

    /// The address as `host:port`.
    pub fn target(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for CommandEndpoint {
    fn drop(&mut self) {
        if let Served::Here(task) = &self.served {
            task.abort();
        }
    }
}

async fn serve(mut conn: TcpStream) -> Result<()> {
    match Command::read(&mut conn).await? {
        Command::Download(count) => send_zeros(&mut conn, count).await?,
        Command::Pour => {
            SockRef::from(&conn).set_send_buffer_size(POURED)?;
            send_zeros(&mut conn, u64::MAX).await?;
        }
        Command::Upload(count) => {
            skip(&mut conn, count).await?;
            conn.write_all(&[1]).await?;
        }
        Command::Echo => {
            let (mut input, mut output) = conn.split();
            let mut input = tokio::io::BufReader::with_capacity(64 * 1024, &mut input);
            tokio::io::copy_buf(&mut input, &mut output).await?;
        }
        Command::Hold => {
            tokio::time::sleep(HELD).await;
            // Closing with unread input resets the connection.
            return Ok(());
        }
    }
    // Until the client closes.
    let _ = conn.read_u8().await;
    Ok(())
}
