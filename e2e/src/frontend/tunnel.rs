//! One connection over one gRPC stream, as a byte stream, like the Go client library.
//!
//! `shutdown` sends CLOSE_REQ, because the protocol has no half-close; reading continues until the CLOSE_RSP.

use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use proto::packet::Payload;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::DialError;
use crate::adversarial::{PacketStream, close_req, data, dial_req};
use crate::wait::within;

/// Largest write. The Go client does not split writes; kube-apiserver writes at most this much at once.
const PIECE: usize = 32 * 1024;

/// An established connection.
pub struct Tunnel {
    packets: PacketStream,
    connect_id: i64,
    unread: Bytes,
    closing: bool,
    ended: Option<String>,
}

impl Tunnel {
    /// Dials over a fresh stream.
    pub async fn dial(mut packets: PacketStream, target: &str) -> Result<Self, DialError> {
        let random = i64::from(rand::random::<u32>()) + 1;
        packets.send(dial_req(random, target)).await?;
        loop {
            let next = within("the DIAL_RSP", packets.next()).await?;
            let packet = match next {
                Ok(Some(packet)) => packet,
                Ok(None) => return Err(DialError::NoAnswer("the stream ended with OK".into())),
                Err(status) => {
                    return Err(DialError::NoAnswer(format!("{:?}: {}", status.code(), status.message())));
                }
            };
            match packet.payload {
                Some(Payload::DialResponse(response)) if response.random != random => {
                    return Err(anyhow::anyhow!("a DIAL_RSP for the strange dial {}", response.random).into());
                }
                Some(Payload::DialResponse(response)) if !response.error.is_empty() => {
                    return Err(DialError::Refused(response.error));
                }
                Some(Payload::DialResponse(response)) => {
                    return Ok(Self {
                        packets,
                        connect_id: response.connect_id,
                        unread: Bytes::new(),
                        closing: false,
                        ended: None,
                    });
                }
                Some(Payload::CloseDial(_)) => return Err(DialError::NoAnswer("DIAL_CLS".into())),
                _ => {}
            }
        }
    }

    /// The error of the CLOSE_RSP (empty if none), once it has arrived.
    pub fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// The stream below.
    pub fn packets(&mut self) -> &mut PacketStream {
        &mut self.packets
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        while this.unread.is_empty() {
            if this.ended.is_some() {
                return Poll::Ready(Ok(()));
            }
            let packet = match ready!(this.packets.poll_next(cx)) {
                Ok(Some(packet)) => packet,
                Ok(None) => return Poll::Ready(Err(Error::new(ErrorKind::UnexpectedEof, "no CLOSE_RSP"))),
                Err(status) => return Poll::Ready(Err(Error::new(ErrorKind::ConnectionReset, status))),
            };
            match packet.payload {
                Some(Payload::Data(data)) if data.connect_id == this.connect_id => {
                    if data.data.is_empty() {
                        // The Go client takes it for an end of file, so no program may send it.
                        return Poll::Ready(Err(Error::new(ErrorKind::InvalidData, "an empty DATA")));
                    }
                    this.unread = data.data;
                }
                // The Go client answers DATA for an unknown connection the same way.
                Some(Payload::Data(stray)) if this.packets.poll_ready(cx).is_ready() => {
                    let _gone = this.packets.start_send(close_req(stray.connect_id));
                }
                Some(Payload::CloseResponse(close)) if close.connect_id == this.connect_id => {
                    this.ended = Some(close.error);
                }
                other => {
                    let text = format!("not for this connection: {other:?}");
                    return Poll::Ready(Err(Error::new(ErrorKind::InvalidData, text)));
                }
            }
        }
        let count = this.unread.len().min(buf.remaining());
        buf.put_slice(&this.unread.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        if this.closing || this.ended.is_some() {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(this.packets.poll_ready(cx))?;
        let piece = buf.get(..PIECE).unwrap_or(buf);
        match this.packets.start_send(data(this.connect_id, Bytes::copy_from_slice(piece))) {
            true => Poll::Ready(Ok(piece.len())),
            false => Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if this.closing || this.ended.is_some() {
            return Poll::Ready(Ok(()));
        }
        ready!(this.packets.poll_ready(cx))?;
        this.closing = true;
        match this.packets.start_send(close_req(this.connect_id)) {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
        }
    }
}
