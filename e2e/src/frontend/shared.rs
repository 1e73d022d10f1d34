//! One HTTP/2 connection with a Proxy stream for each dial, like `ReusableTunnel` of the Go client library.

use anyhow::Result;
use tonic::transport::Channel;

use super::{Conn, DialError, Frontend, Tunnel};
use crate::adversarial::{PacketStream, channel_with};

/// The connection's window, in bytes: HTTP/2's largest. grpc-go returns this window before the application has read, but this
/// harness's HTTP/2 library does not, so that stalled streams hold it.
const WINDOW: u32 = (1 << 31) - 1;

/// A gRPC client's only connection. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedConnection(Channel);

impl SharedConnection {
    /// Connects; each stream gets this flow-control window, in bytes.
    pub async fn open(frontend: &Frontend, stream_window: u32) -> Result<Self> {
        Ok(Self(channel_with(frontend.socket().await?, stream_window, WINDOW).await?))
    }

    /// A new Proxy stream.
    pub fn packets(&self) -> PacketStream {
        PacketStream::proxy(self.0.clone())
    }

    /// Dials `host:port` on a new stream.
    pub async fn dial(&self, target: &str) -> Result<Conn, DialError> {
        Ok(Conn::Grpc(Box::new(Tunnel::dial(self.packets(), target).await?)))
    }
}
