//! Keeps pacing off the connections between agents and servers where their way is short.
//!
//! BBR paces what it sends. Without the `fq` queueing discipline below it the kernel does so by a timer for every 64 KiB or so
//! (`tcp_pacing_check` in net/ipv4/tcp_output.c), and on a virtual machine each costs exits to the hypervisor: 15 to 25 % of the
//! processor time of bulk transfers. A way of less than a millisecond has no queue that would be worth it.
//!
//! A connection that was paced once stays so, whatever algorithm it is given later (`sk_pacing_status`). So connections
//! begin with another one, and are given the system's when their way turns out to be long.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpStream;

/// From this round trip on a way is long. (The windows grow from there on, too.)
const LONG_WAY: Duration = Duration::from_millis(1);

/// What algorithms that pace have in common: there are bbr, bbr2 and bbr3.
const PACING: &[u8] = b"bbr";
/// What stands in for them: every kernel has it, most begin with it, and it never paces by itself.
const INSTEAD: &[u8] = b"cubic";

/// The system's congestion control, which paces, and what connections have instead of it while their way is not known
/// to be long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pacing {
    system: Arc<[u8]>,
    instead: &'static [u8],
}

impl Pacing {
    /// What is to be kept off connections between agents and servers, and a line in the log about it. `None` if there is
    /// nothing to do: the system's does not pace, there is nothing that this process may use instead
    /// (`net.ipv4.tcp_allowed_congestion_control`), or the operator wants it everywhere (`--pace-short-links`).
    pub fn of_links(pace_short: bool) -> Option<Self> {
        let found = Self::find(|name| name.starts_with(PACING), INSTEAD).unwrap_or_else(|error| {
            tracing::warn!(%error, "no congestion control found, that of the system is used");
            None
        });
        match &found {
            None if pace_short => tracing::info!("--pace-short-links changes nothing here: nothing paces"),
            None => {}
            Some(Pacing { system, .. }) if pace_short => {
                tracing::debug!(algorithm = shown(system), "links are paced, the short ones too");
            }
            Some(Pacing { system, instead }) => tracing::info!(
                paced_by = shown(system),
                instead = shown(instead),
                "links with a round trip below 1 ms are not paced"
            ),
        }
        found.filter(|_| !pace_short)
    }

    /// As a new connection would get it, if it `paces` and this process may use `instead`.
    ///
    /// # Errors
    /// Those of socket(2) and getsockopt(2).
    pub fn find(paces: impl FnOnce(&[u8]) -> bool, instead: &'static [u8]) -> io::Result<Option<Self>> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        let system = socket.tcp_congestion()?;
        let system = system.split(|byte| *byte == 0).next().unwrap_or_default();
        let usable = paces(system) && socket.set_tcp_congestion(instead).is_ok();
        Ok(usable.then(|| Pacing { system: system.into(), instead }))
    }

    /// Has a socket that is not connected yet begin without pacing; what a listener accepts follows it in this.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn keep_off(&self, socket: &impl AsFd) -> io::Result<()> {
        SockRef::from(socket).set_tcp_congestion(self.instead)
    }

    /// What gives a connection the system's algorithm, once a round trip is found that makes its way a long one. It
    /// holds a descriptor of the connection: to be dropped with it.
    ///
    /// # Errors
    /// A lack of descriptors.
    pub fn resume(
        &self,
        stream: &TcpStream,
    ) -> io::Result<impl FnOnce(Duration) + Send + Sync + 'static + use<>> {
        let (socket, system) = (stream.as_fd().try_clone_to_owned()?, Arc::clone(&self.system));
        Ok(move |round_trip| {
            if round_trip < LONG_WAY {
                return;
            }
            let set = SockRef::from(&socket).set_tcp_congestion(&system);
            tracing::debug!(?round_trip, algorithm = shown(&system), error = ?set.err(), "a long way: paced");
        })
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::bind_tcp;

    /// As if whatever algorithm this machine has paced, with Reno, which every kernel has, instead.
    fn pacing() -> Pacing {
        Pacing::find(|_| true, b"reno").unwrap().unwrap()
    }

    fn algorithm(stream: &TcpStream) -> Vec<u8> {
        let name = SockRef::from(stream).tcp_congestion().unwrap();
        name.split(|byte| *byte == 0).next().unwrap().to_vec()
    }

    #[test]
    fn only_what_paces_and_can_be_replaced_is_replaced() {
        let mut seen = Vec::new();
        let look = |name: &[u8]| {
            seen = name.to_vec();
            false
        };
        assert_eq!(Pacing::find(look, b"reno").unwrap(), None);
        assert!(!seen.is_empty() && !seen.contains(&0));
        assert_eq!(Pacing::find(|_| true, b"no-such-algorithm").unwrap(), None);
        let pacing = pacing();
        assert_eq!((&*pacing.system, pacing.instead), (seen.as_slice(), b"reno".as_slice()));
        let paces = seen.starts_with(b"bbr");
        let instead = |pacing: Option<Pacing>| pacing.map(|pacing| pacing.instead);
        assert_eq!(instead(Pacing::of_links(false)), paces.then_some(INSTEAD));
        assert_eq!(instead(Pacing::of_links(true)), None);
    }

    #[tokio::test]
    async fn a_connection_is_paced_when_its_way_is_long() {
        let pacing = pacing();
        let listener = bind_tcp("127.0.0.1", 0).unwrap();
        pacing.keep_off(&listener).unwrap();
        for (round_trip, long) in [(0, false), (999, false), (1_000, true), (50_000, true)] {
            let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            assert_eq!(algorithm(&accepted), b"reno", "begins without");
            pacing.resume(&accepted).unwrap()(Duration::from_micros(round_trip));
            let system = &*pacing.system;
            assert_eq!(algorithm(&accepted), if long { system } else { b"reno" }, "{round_trip} us");
        }
    }
}
