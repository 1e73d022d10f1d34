//! A TCP connection between an agent and a server that limits the unsent bytes in the kernel. A frontend's client uses this type
//! with the fixed limit [`super::NOTSENT_LOWAT`].
//!
//! A ping or a dial waits behind the bytes that the kernel holds unsent. Without a limit these are megabytes: the send
//! buffer grows with the congestion window and never shrinks with it. A fixed limit is too small for a fast path, where
//! the connection runs dry before its task has its turn, and too large for a slow path. So the limit is a time: the
//! bytes that the path carries in [`MAX_UNSENT_TIME`] or, with BBR, in [`MAX_UNSENT_TIME_BBR`].

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How long bytes may wait unsent. The kernel asks for more when half of it is left, and the task must have its turn before
/// that is sent.
const MAX_UNSENT_TIME: Duration = Duration::from_millis(8);

/// The same with BBR, which needs a backlog to measure the path. With 8 and 20 ms one download at 50 ms RTT had an eighth
/// less throughput and longer pings.
const MAX_UNSENT_TIME_BBR: Duration = Duration::from_millis(40);

/// The shortest sample of the rate: several RTTs of most paths, because acknowledgments come in bursts.
const MIN_RATE_SAMPLE: Duration = Duration::from_millis(100);

/// The smallest and the largest limit of unsent bytes.
const MIN_UNSENT_BYTES: u64 = 64 << 10;
const MAX_UNSENT_BYTES: u64 = 4 << 20;

/// A connected socket, as a transport.
#[derive(Debug)]
pub struct LinkSocket {
    stream: TcpStream,
    /// `None` until [`LinkSocket::bound_unsent`].
    bound: Option<UnsentBound>,
}

impl LinkSocket {
    /// A socket without a limit on unsent bytes.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, bound: None }
    }

    /// Limits unsent bytes from now on, as soon as the path's rate is known.
    pub fn bound_unsent(&mut self) {
        let bbr = SockRef::from(&self.stream).tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr"));
        let wait = if bbr { MAX_UNSENT_TIME_BBR } else { MAX_UNSENT_TIME };
        self.bound = Some(UnsentBound::new(Instant::now(), wait));
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Registers the socket with the caller's runtime instead of the one that accepted it.
    ///
    /// # Errors
    /// If the process has no descriptor left; the socket stays where it was.
    pub fn move_to_this_runtime(&mut self) -> io::Result<()> {
        let socket = std::net::TcpStream::from(self.stream.as_fd().try_clone_to_owned()?);
        self.stream = TcpStream::from_std(socket)?;
        Ok(())
    }

    /// Counts written bytes, and adjusts the limit when the kernel accepts no more.
    fn wrote(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let Some(bound) = &mut self.bound else { return result };
        match &result {
            Poll::Ready(Ok(count)) => bound.wrote(Instant::now(), *count as u64),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                if let Some(bytes) = bound.blocked(Instant::now()) {
                    // Fails only if the kernel lacks this option: then there is no limit.
                    let _ = SockRef::from(&self.stream).set_tcp_notsent_lowat(bytes);
                }
            }
        }
        result
    }
}

impl AsyncRead for LinkSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for LinkSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The limit as a function of writes and times. Has no socket.
#[derive(Debug)]
struct UnsentBound {
    /// How long bytes may wait unsent.
    wait: Duration,
    /// Bytes written since `since`.
    written: u64,
    since: Instant,
    /// The time of the last write, and whether the socket accepted none of it.
    last: Instant,
    is_blocked: bool,
    /// In bytes; `None` before the first sample.
    bound: Option<u32>,
}

impl UnsentBound {
    fn new(now: Instant, wait: Duration) -> Self {
        Self { wait, written: 0, since: now, last: now, is_blocked: false, bound: None }
    }

    /// A pause of the writer says nothing about the path: the sample restarts after it.
    fn tried(&mut self, now: Instant) {
        if !self.is_blocked && now.saturating_duration_since(self.last) >= MIN_RATE_SAMPLE {
            (self.written, self.since) = (0, now);
        }
        self.last = now;
    }

    /// The socket accepted this many bytes.
    fn wrote(&mut self, now: Instant, bytes: u64) {
        self.tried(now);
        self.is_blocked = false;
        self.written += bytes;
    }

    /// The socket accepts no more: the bytes written in this sample are the path's rate. Returns a new limit.
    fn blocked(&mut self, now: Instant) -> Option<u32> {
        self.tried(now);
        self.is_blocked = true;
        let took = now.saturating_duration_since(self.since);
        if took < MIN_RATE_SAMPLE {
            return None;
        }
        let bytes = u128::from(self.written) * self.wait.as_nanos() / took.as_nanos();
        (self.written, self.since) = (0, now);
        let bound = u32::try_from(bytes.clamp(MIN_UNSENT_BYTES.into(), MAX_UNSENT_BYTES.into())).ok()?;
        // A system call for real changes only, not for noise.
        let near = |old: u32| bound.abs_diff(old) <= old / 4;
        if self.bound.is_some_and(near) {
            return None;
        }
        self.bound = Some(bound);
        self.bound
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    #[test]
    fn bound_is_eight_milliseconds_of_the_path() {
        let mut now = Instant::now();
        let mut unsent = UnsentBound::new(now, MAX_UNSENT_TIME);
        // 200 Mbit/s; then nearly the same; 800 Mbit/s; 7 Mbit/s; 100 Gbit/s.
        for (written, wanted) in [
            (2_500_000, Some(200_000)),
            (2_400_000, None),
            (10_000_000, Some(800_000)),
            (87_500, Some(64 << 10)),
            (1_250_000_000, Some(4 << 20)),
        ] {
            unsent.wrote(now, written / 2);
            assert_eq!(unsent.blocked(now + TENTH / 2), None, "too soon");
            unsent.wrote(now + TENTH / 2, written / 2);
            now += TENTH;
            assert_eq!(unsent.blocked(now), wanted, "{written} bytes");
        }
    }

    #[test]
    fn pause_of_the_writer_is_not_the_paths() {
        let begin = Instant::now();
        let mut unsent = UnsentBound::new(begin, MAX_UNSENT_TIME);
        let now = begin + 100 * TENTH;
        unsent.wrote(now, 4 << 20);
        assert_eq!(unsent.blocked(now), None, "ten seconds of nothing are no slow path");
        unsent.wrote(now + TENTH, 1 << 20);
        assert!(unsent.blocked(now + TENTH).is_some_and(|bound| bound > 256 << 10));
    }

    #[tokio::test]
    async fn socket_that_blocks_gets_a_bound() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, reader) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (sender, (mut reader, _)) = (sender.unwrap(), reader.unwrap());
        tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
        let lowat = |socket: &LinkSocket| SockRef::from(&socket.stream).tcp_notsent_lowat().unwrap();
        let mut socket = LinkSocket::new(sender);
        socket.bound_unsent();
        let unbounded = lowat(&socket);
        let piece = vec![7; 64 << 10];
        let until_bound = async {
            while lowat(&socket) == unbounded {
                socket.write_all(&piece).await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(60), until_bound).await.unwrap();
        let bound = u64::from(lowat(&socket));
        assert!((MIN_UNSENT_BYTES..=MAX_UNSENT_BYTES).contains(&bound), "{bound}");
    }
}
