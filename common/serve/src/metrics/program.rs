//! Metrics of both programs about the program itself and its payload.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{CountBy, Counter};

crate::label! {
    /// The direction of payload, the same at both programs.
    enum Direction in "direction" {
        /// From the client to the endpoint.
        ToEndpoint => "to_endpoint",
        /// From the endpoint to the client.
        FromEndpoint => "from_endpoint",
    }
}

crate::label!(struct Version in "version");

/// Registers `build_info` {version}, which is always 1.
pub fn register_build_info(registry: &mut Registry) {
    let family = Family::<Version, Gauge>::default();
    family.get_or_create(&Version(env!("CARGO_PKG_VERSION"))).set(1);
    registry.register("build_info", "1 for the version of the program", family);
}

/// `payload_bytes_total` {direction}. Clones share the counts.
#[derive(Debug, Clone)]
pub struct PayloadBytes {
    to_endpoint: Counter,
    from_endpoint: Counter,
}

impl PayloadBytes {
    /// Registers the family, with both directions at 0.
    pub fn register(registry: &mut Registry) -> Self {
        let help = "Payload bytes that agent streams have carried, by direction";
        let family = CountBy::register(registry, "payload_bytes_total", help);
        let [to_endpoint, from_endpoint] =
            [Direction::ToEndpoint, Direction::FromEndpoint].map(|direction| family.counter(direction));
        Self { to_endpoint, from_endpoint }
    }

    /// Adds the bytes of one turn of an agent stream.
    pub fn add(&self, to_endpoint: u64, from_endpoint: u64) {
        for (counter, bytes) in [(&self.to_endpoint, to_endpoint), (&self.from_endpoint, from_endpoint)] {
            if bytes > 0 {
                counter.inc_by(bytes);
            }
        }
    }
}
