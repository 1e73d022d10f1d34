//! The harness around the two built binaries: a throw-away PKI, processes, a load balancer, independent clients for
//! both frontends, lying peers, endpoints and a metrics reader.
//!
//! Nothing here links against the servers' own code: what the tests see is what a kube-apiserver, a load balancer, an
//! endpoint and a Prometheus would see. The only shared crate is `proto`, the wire contract. The programs under test
//! are named by `PROXY_SERVER` and `PROXY_AGENT`, so the same tests run against any other implementation.

pub mod balancer;
pub mod bench;
pub mod cases;
pub mod endpoints;
pub mod exchange;
pub mod figures;
pub mod floods;
pub mod frontend;
pub mod http1;
pub mod kube;
pub mod load;
pub mod metrics;
pub mod netns;
pub mod outages;
pub mod pair;
pub mod payload;
pub mod pki;
pub mod ports;
pub mod process;
pub mod program;
pub mod rollout;
pub mod rotation;
pub mod soak;
pub mod sockets;
pub mod stalls;
pub mod usage;
pub mod wait;
pub mod wan;
pub mod wild;

/// The generated client and server stubs of both services.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated code")]
pub mod stubs {
    tonic::include_proto!("_");
}
