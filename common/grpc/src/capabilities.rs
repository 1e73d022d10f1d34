//! The extensions that native peers negotiate beyond the upstream protocol.
//!
//! An agent offers them in the metadata of its Connect; a server answers in the response headers with those that it
//! accepts. The result holds for that stream only, because the next one may lead to an upstream peer.

use http::{HeaderMap, HeaderName, HeaderValue};
use mux::{Negotiated, Windows};

/// The metadata key: a list of names, some with a value, separated by commas.
pub const CAPABILITIES: HeaderName = HeaderName::from_static("konnectivity-capabilities");

const PINGS: &str = "pings";
const HALF_CLOSE: &str = "half-close";
const TRACES: &str = "traces";
const CREDITS: &str = "credits";
const LANES: &str = "lanes";

/// The initial window of a new connection, in bytes of payload: the bandwidth-delay product of 1 Gbit/s and 1 ms RTT.
/// It grows for a reader that keeps up.
pub const WINDOW: u32 = 128 << 10;

/// A smaller initial window of the peer is ignored as invalid, in bytes.
const MIN_WINDOW: u32 = 1 << 10;

/// The extensions that one end offers, or that both negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Frequent pings, in both directions, are allowed: see [`super::KeepaliveFlags::to_native_server`].
    pub pings: bool,
    /// FIN reports that a source has ended; the other direction continues.
    pub half_close: bool,
    /// DIAL_REQ may carry the trace context of the dial.
    pub traces: bool,
    /// Each connection has its own flow control. The value is how many bytes the other end may send on a new
    /// connection.
    pub credits: Option<u32>,
    /// One agent process may open several streams, its lanes. The agent sends a random number, the same on all its streams; the
    /// server answers with the number of lanes that it accepts.
    pub lanes: Option<u64>,
}

/// The most lanes of one agent process.
pub const MAX_LANES: u64 = 4;

impl Capabilities {
    /// All extensions of this build, except lanes; `flow_control` is the operator's flag for credits and half-close.
    pub fn supported(flow_control: bool) -> Self {
        let credits = flow_control.then_some(WINDOW);
        Capabilities { pings: true, traces: true, half_close: flow_control, credits, lanes: None }
    }

    /// The same with this value of lanes.
    #[must_use]
    pub fn with_lanes(self, lanes: Option<u64>) -> Self {
        Capabilities { lanes, ..self }
    }

    /// The extensions that a peer names. Unknown names are ignored.
    pub fn read(metadata: &HeaderMap) -> Self {
        let mut named = Capabilities::default();
        let values = metadata.get_all(CAPABILITIES).iter().filter_map(|value| value.to_str().ok());
        for name in values.flat_map(|value| value.split(',')).map(str::trim) {
            match name.split_once('=') {
                None if name == PINGS => named.pings = true,
                None if name == TRACES => named.traces = true,
                None if name == HALF_CLOSE => named.half_close = true,
                Some((CREDITS, window)) => {
                    named.credits = window.parse().ok().filter(|window| *window >= MIN_WINDOW);
                }
                Some((LANES, lanes)) => named.lanes = lanes.parse().ok(),
                _ => {}
            }
        }
        named
    }

    /// The extensions that the peer supports too, with this end's values: a server's answer.
    #[must_use]
    pub fn and(self, peer: Capabilities) -> Self {
        Capabilities {
            pings: self.pings && peer.pings,
            traces: self.traces && peer.traces,
            half_close: self.half_close && peer.half_close,
            credits: self.credits.filter(|_| peer.credits.is_some()),
            // A server finds out by its probes whether the agent keeps a lane.
            lanes: self.lanes.filter(|_| peer.lanes.is_some() && peer.pings),
        }
    }

    /// The metadata value; `None` if there is no extension.
    pub fn header(self) -> Option<HeaderValue> {
        let mut names = Vec::new();
        names.extend(self.pings.then(|| PINGS.to_owned()));
        names.extend(self.traces.then(|| TRACES.to_owned()));
        names.extend(self.half_close.then(|| HALF_CLOSE.to_owned()));
        names.extend(self.credits.map(|window| format!("{CREDITS}={window}")));
        names.extend(self.lanes.map(|lanes| format!("{LANES}={lanes}")));
        HeaderValue::try_from(names.join(", ")).ok().filter(|value| !value.is_empty())
    }

    /// The terms of a stream between this end and a peer that named `peer`.
    pub fn negotiated(self, peer: Capabilities) -> Negotiated {
        let windows = |(receive, send)| Windows { receive, send };
        Negotiated {
            credits: self.credits.zip(peer.credits).map(windows),
            half_close: self.half_close && peer.half_close,
        }
    }
}

/// How many pings measure the RTT at most, at the start of a stream: a tenth of a second apart. The lowest counts, because a busy
/// machine delays single ones: all agents return at once after a server's restart. Behind a proxy the windows of a stream with a
/// high RTT stay narrow for as long. (A Go server, which counts pings, tolerates the first one; a Go agent tolerates all.)
pub const RTT_PROBES: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &'static str) -> Capabilities {
        let mut metadata = HeaderMap::new();
        metadata.insert(CAPABILITIES, HeaderValue::from_static(value));
        Capabilities::read(&metadata)
    }

    #[test]
    fn unknown_capabilities_are_ignored() {
        assert_eq!(Capabilities::read(&HeaderMap::new()), Capabilities::default());
        assert_eq!(read("other, pings,ping"), Capabilities { pings: true, ..Capabilities::default() });
        for wrong in
            ["credits", "credits=", "credits=x", "credits=-1", "credits=99999999999", "credits=10", "=5"]
        {
            assert_eq!(read(wrong), Capabilities::default(), "{wrong}");
        }
        assert_eq!(read("credits=4096;x, credits=4096").credits, Some(4096));
        assert!(read("half-close").half_close);
        assert_eq!(read("pings, lanes=18446744073709551615").lanes, Some(u64::MAX));
        for wrong in ["lanes", "lanes=", "lanes=x", "lanes=-1", "lanes=18446744073709551616"] {
            assert_eq!(read(wrong), Capabilities::default(), "{wrong}");
        }
    }

    /// docs/compatibility.md: a peer of a later version may name more, give a name a value, or add to a value.
    #[test]
    fn capabilities_of_later_versions_take_nothing_away() {
        let ours = Capabilities::supported(true).with_lanes(Some(4));
        for (offer, understood) in [
            ("warp, pings, half-close, credits=131072, zstd=3", "pings, half-close, credits=131072"),
            ("pings=2, half-close;v=2, credits=131072;max=9, lanes=1.5", ""),
            ("pings=2, pings, credits2=1, credits=131072", "pings, credits=131072"),
            (",,pings,,\t=,a=b=c", "pings"),
        ] {
            assert_eq!(
                read(offer),
                if understood.is_empty() { Capabilities::default() } else { read(understood) }
            );
            let answer = ours.and(read(offer)).header();
            let answer = answer.as_ref().map_or("", |answer| answer.to_str().unwrap());
            assert!(
                !["warp", "zstd", "2=", ";"].iter().any(|part| answer.contains(part)),
                "{offer}: {answer}"
            );
        }
        // Two lines of the header, one of them not ASCII.
        let mut metadata = HeaderMap::new();
        metadata.append(CAPABILITIES, HeaderValue::from_bytes(b"pings, \xc3\xa9").unwrap());
        metadata.append(CAPABILITIES, HeaderValue::from_static("half-close"));
        assert_eq!(Capabilities::read(&metadata), read("half-close"));
    }

    #[test]
    fn lanes_need_both_ends() {
        let (agent, server) = (
            Capabilities::supported(true).with_lanes(Some(77)),
            Capabilities::supported(true).with_lanes(Some(4)),
        );
        assert_eq!(server.and(agent).lanes, Some(4), "the server's number");
        for (one, other) in [(server, Capabilities::supported(true)), (Capabilities::supported(true), agent)]
        {
            assert_eq!(one.and(other).lanes, None);
        }
        assert_eq!(server.and(Capabilities { pings: false, ..agent }).lanes, None, "no probes");
        let mut metadata = HeaderMap::new();
        metadata.insert(CAPABILITIES, agent.header().unwrap());
        assert_eq!(Capabilities::read(&metadata), agent);
    }

    #[test]
    fn an_offer_and_its_answer_make_terms() {
        let agent = Capabilities { credits: Some(5_000), ..Capabilities::supported(true) };
        let server = Capabilities::supported(true);
        let mut metadata = HeaderMap::new();
        metadata.insert(CAPABILITIES, agent.header().unwrap());
        assert_eq!(Capabilities::read(&metadata), agent);
        let answer = server.and(agent);
        assert_eq!(answer.credits, Some(WINDOW), "a server grants by its own measure");
        assert_eq!(server.negotiated(agent).credits, Some(Windows { receive: WINDOW, send: 5_000 }));
        assert_eq!(agent.negotiated(answer).credits, Some(Windows { receive: 5_000, send: WINDOW }));
    }

    #[test]
    fn either_end_may_decline() {
        let (on, off) = (Capabilities::supported(true), Capabilities::supported(false));
        for (one, other) in [(on, off), (off, on), (off, off)] {
            assert_eq!(
                one.negotiated(one.and(other)),
                if one == on { one.negotiated(other) } else { Negotiated::default() }
            );
            assert_eq!(one.negotiated(other), Negotiated::default());
            assert_eq!(one.and(other), off);
        }
        assert_eq!(Capabilities::default().header(), None);
        assert_eq!(off.header().unwrap(), "pings, traces");
    }
}
