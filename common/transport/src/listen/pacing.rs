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

/// From this round trip on a way is long. (The windows grow from about there on, too.)
const LONG_WAY: Duration = Duration::from_millis(1);

/// What algorithms that pace have in common: there are bbr, bbr2 and bbr3.
const PACING: &[u8] = b"bbr";
/// What stands in for them, in this order: most kernels begin with the first, all have the second. Neither paces by itself.
const INSTEAD: [&[u8]; 2] = [b"cubic", b"reno"];

/// The system's congestion control, which paces, and what connections have instead of it while their way is not known
/// to be long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pacing {
    system: Arc<[u8]>,
    instead: &'static [u8],
}

/// What was found of the system's.
#[derive(Debug)]
enum Found {
    DoesNotPace,
    Paces(Pacing),
    /// It does, and may not be replaced, or not be put back.
    Stays(String, io::Error),
}

impl Pacing {
    /// What is to be kept off connections between agents and servers, as the operator wants it (`--pace-short-links`), and a
    /// line in the log about it. Looked for once: what is changed later takes effect with the next start.
    pub fn of_links(pace_short: bool) -> Option<Self> {
        let instead: &[_] = if pace_short { &[] } else { &INSTEAD };
        match found(|name| name.starts_with(PACING), instead) {
            Ok(Found::DoesNotPace) if pace_short => {
                tracing::info!("--pace-short-links changes nothing here: nothing paces");
                None
            }
            Ok(Found::DoesNotPace) => None,
            Ok(Found::Stays(..)) if pace_short => None,
            Ok(Found::Paces(pacing)) => {
                let (paced_by, instead) = (shown(&pacing.system), shown(pacing.instead));
                tracing::info!(paced_by, instead, "links with a round trip below 1 ms are not paced");
                Some(pacing)
            }
            Ok(Found::Stays(paced_by, error)) => {
                tracing::info!(paced_by, %error, "short links are paced, see net.ipv4.tcp_allowed_congestion_control");
                None
            }
            Err(error) => {
                tracing::warn!(%error, "no congestion control found, that of the system is used");
                None
            }
        }
    }

    /// The system's, whether it paces or not.
    ///
    /// # Errors
    /// Those of the sockets by which it is tried.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_any() -> io::Result<Self> {
        match found(|_| true, &INSTEAD)? {
            Found::Paces(pacing) => Ok(pacing),
            Found::Stays(_, error) => Err(error),
            Found::DoesNotPace => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Has a socket that is not connected yet begin without pacing; what a listener accepts follows it in this. Where that
    /// fails, it begins as the system would have it.
    pub fn keep_off(&self, socket: &impl AsFd) {
        if let Err(error) = SockRef::from(socket).set_tcp_congestion(self.instead) {
            tracing::debug!(%error, "a link begins paced");
        }
    }

    /// Gives a connection the system's algorithm if its round trip makes its way a long one, and nobody has given it
    /// yet another.
    pub fn resume(&self, stream: &TcpStream, round_trip: Duration) {
        let socket = SockRef::from(stream);
        if round_trip < LONG_WAY || !socket.tcp_congestion().is_ok_and(|name| trimmed(&name) == self.instead)
        {
            return;
        }
        match socket.set_tcp_congestion(&self.system) {
            Ok(()) => {
                tracing::info!(target: "v2", peer = ?stream.peer_addr(), ?round_trip, algorithm = shown(&self.system), "a long way: paced");
            }
            Err(error) => {
                tracing::warn!(peer = ?stream.peer_addr(), ?round_trip, %error, "a long way stays without pacing");
            }
        }
    }
}

/// Tries it on a socket that is never connected.
fn found(paces: impl FnOnce(&[u8]) -> bool, instead: &[&'static [u8]]) -> io::Result<Found> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let system = socket.tcp_congestion()?;
    let system = trimmed(&system);
    Ok(if paces(system) {
        choose(system, instead, |name| socket.set_tcp_congestion(name))
    } else {
        Found::DoesNotPace
    })
}

/// The first that can be `set`, if the system's can be set again behind it: each may be forbidden for itself.
fn choose(system: &[u8], instead: &[&'static [u8]], mut set: impl FnMut(&[u8]) -> io::Result<()>) -> Found {
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for name in instead.iter().filter(|name| **name != system) {
        match set(name).and_then(|()| set(system)) {
            Ok(()) => return Found::Paces(Pacing { system: system.into(), instead: name }),
            Err(error) => refused = error,
        }
    }
    Found::Stays(shown(system), refused)
}

/// Without the zeros that the kernel fills the name up with.
fn trimmed(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::bind_links;

    #[test]
    fn only_what_can_be_replaced_and_put_back_is_replaced() {
        let rows: [(&[&str], Option<&[u8]>); 5] = [
            (&["bbr", "cubic", "reno"], Some(b"cubic")),
            (&["bbr", "reno"], Some(b"reno")),
            (&["bbr"], None),
            // New sockets have it, and nobody without rights may ask for it.
            (&["cubic", "reno"], None),
            (&[], None),
        ];
        for (allowed, wanted) in rows {
            let allowed = |name: &[u8]| allowed.iter().any(|known| known.as_bytes() == name);
            let set = |name: &[u8]| match allowed(name) {
                true => Ok(()),
                false => Err(io::ErrorKind::PermissionDenied.into()),
            };
            match choose(b"bbr", &INSTEAD, set) {
                Found::Paces(pacing) => {
                    assert_eq!((Some(pacing.instead), &*pacing.system), (wanted, &b"bbr"[..]))
                }
                Found::Stays(name, error) => {
                    assert_eq!((name.as_str(), error.kind()), ("bbr", io::ErrorKind::PermissionDenied));
                    assert_eq!(wanted, None);
                }
                Found::DoesNotPace => panic!("it does"),
            }
        }
        assert!(matches!(found(|_| false, &INSTEAD), Ok(Found::DoesNotPace)));
        assert_eq!(Pacing::of_links(true), None, "as the operator wants it");
        assert!(matches!(choose(b"bbr", &[], |_| panic!("not tried")), Found::Stays(..)), "nor is it tried");
    }

    #[tokio::test]
    async fn a_connection_is_paced_when_its_way_is_long() {
        let pacing = Pacing::of_any().unwrap();
        let algorithm =
            |stream: &TcpStream| trimmed(&SockRef::from(stream).tcp_congestion().unwrap()).to_vec();
        let listener = bind_links("127.0.0.1", 0, Some(&pacing)).unwrap();
        for (round_trip, long) in [(0, false), (999, false), (1_000, true), (50_000, true)] {
            let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            assert_eq!(algorithm(&accepted), pacing.instead, "begins without");
            pacing.resume(&accepted, Duration::from_micros(round_trip));
            let wanted = if long { &*pacing.system } else { pacing.instead };
            assert_eq!(algorithm(&accepted), wanted, "{round_trip} us");
        }
    }

    #[tokio::test]
    async fn what_others_have_chosen_and_what_cannot_be_set_stays() {
        let pacing = Pacing::of_any().unwrap();
        let unknown: Arc<[u8]> = Arc::from(&b"no-such-one"[..]);
        let absent = Pacing { system: Arc::clone(&unknown), instead: b"none-either" };
        let not_back = Pacing { system: unknown, instead: pacing.instead };
        let listener = bind_links("127.0.0.1", 0, Some(&pacing)).unwrap();
        absent.keep_off(&listener);
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        absent.resume(&accepted, Duration::from_secs(1));
        not_back.resume(&accepted, Duration::from_secs(1));
        pacing.resume(&client, Duration::from_secs(1));
        for (stream, name) in [(&accepted, pacing.instead), (&client, &*pacing.system)] {
            assert_eq!(trimmed(&SockRef::from(stream).tcp_congestion().unwrap()), name);
        }
    }
}
