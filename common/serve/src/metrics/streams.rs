//! The two families of both programs: packets by segment and type, and stream errors by segment, code and type.

use std::sync::{Arc, OnceLock};

use mux::PacketKind;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::registered;

crate::label! {
    /// The hop and its direction, seen from the server: an agent also counts its sends as [`Segment::FromAgent`].
    pub enum Segment in "segment" {
        /// Frontend to server.
        FromClient => "from_client",
        /// Server to frontend.
        ToClient => "to_client",
        /// Agent to server.
        FromAgent => "from_agent",
        /// Server to agent.
        ToAgent => "to_agent",
    }
}

/// A packet's type, or `None` for an error without a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PacketType(Option<PacketKind>);

impl PacketType {
    fn name(self) -> &'static str {
        self.0.map_or("Unknown", PacketKind::name)
    }
}

crate::label!(PacketType in "packet_type");

// Go's name of a gRPC status code.
crate::label!(struct Code in "code");

/// `stream_packets_total` {segment, packet_type}.
#[derive(Debug, Clone)]
pub struct StreamPackets {
    meters: [PacketMeter; Segment::ALL.len()],
}

impl StreamPackets {
    /// Registers the family; it appears with the first packet.
    pub fn register(registry: &mut Registry) -> Self {
        let help = "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)";
        let family = registered(registry, "stream_packets_total", help, Family::default());
        Self { meters: std::array::from_fn(|index| PacketMeter::new(&family, Segment::ALL[index])) }
    }

    /// The counter of one segment, to be kept by the caller.
    pub fn meter(&self, segment: Segment) -> PacketMeter {
        self.meters[segment as usize].clone()
    }
}

/// Counts the packets of one segment. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PacketMeter(Arc<Cells>);

#[derive(Debug)]
struct Cells {
    family: Family<(PacketType, Segment), Counter>,
    segment: Segment,
    cells: [OnceLock<Counter>; PacketKind::ALL.len()],
}

impl PacketMeter {
    fn new(family: &Family<(PacketType, Segment), Counter>, segment: Segment) -> Self {
        Self(Arc::new(Cells { family: family.clone(), segment, cells: Default::default() }))
    }

    /// Counts one packet. After the first of its kind this is one relaxed atomic addition.
    ///
    /// Go counts a packet *before* it is sent, and after it is received.
    pub fn count(&self, kind: PacketKind) {
        let Cells { family, segment, cells } = &*self.0;
        let make = || family.get_or_create_owned(&(PacketType(Some(kind)), *segment));
        let place = PacketKind::ALL.iter().position(|known| *known == kind);
        if let Some(cell) = place.and_then(|place| cells.get(place)) {
            cell.get_or_init(make).inc();
        }
    }
}

/// `stream_errors_total` {segment, code, packet_type}.
#[derive(Debug, Clone)]
pub struct StreamErrors(Family<(Code, (PacketType, Segment)), Counter>);

impl StreamErrors {
    /// Registers the family; it appears with the first error.
    pub fn register(registry: &mut Registry) -> Self {
        let help = "Count of gRPC stream errors, by segment, grpc Code, packet type. \
                    (example: from_agent, Code.Unavailable, DIAL_RSP)";
        Self(registered(registry, "stream_errors_total", help, Family::default()))
    }

    /// Counts one error. `code` is Go's name of the gRPC code (`Unavailable`), `packet` the packet to be sent, or
    /// `None` for an error while receiving. An orderly end of a stream is no error.
    pub fn count(&self, segment: Segment, code: &'static str, packet: Option<PacketKind>) {
        self.0.get_or_create(&(Code(code), (PacketType(packet), segment))).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::text;

    #[test]
    fn children_appear_with_their_first_packet() {
        let mut registry = Registry::with_prefix("p");
        let packets = StreamPackets::register(&mut registry);
        assert_eq!(text::encode(&registry), "");
        let meter = packets.meter(Segment::ToAgent);
        meter.count(PacketKind::Drain);
        packets.clone().meter(Segment::ToAgent).count(PacketKind::Drain);
        packets.meter(Segment::FromClient).count(PacketKind::DialReq);
        let scrape = text::encode(&registry);
        let samples: Vec<&str> = scrape.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "p_stream_packets_total{packet_type=\"DIAL_REQ\",segment=\"from_client\"} 1",
                "p_stream_packets_total{packet_type=\"DRAIN\",segment=\"to_agent\"} 2",
            ]
        );
    }

    #[test]
    fn an_error_without_packet_is_unknown() {
        let mut registry = Registry::default();
        let errors = StreamErrors::register(&mut registry);
        errors.count(Segment::FromAgent, "Unavailable", None);
        let expected =
            "stream_errors_total{code=\"Unavailable\",packet_type=\"Unknown\",segment=\"from_agent\"} 1\n";
        assert!(text::encode(&registry).ends_with(expected));
    }
}
