//! The test harness for the two built programs: a temporary PKI, processes, a load balancer, independent clients of both
//! frontends, adversarial peers, endpoints and a metrics reader.
//!
//! Nothing here links against the code of the programs: the tests observe what a kube-apiserver, a load balancer, an endpoint
//! and a Prometheus can observe. The only shared crate is `proto`, the wire contract. `PROXY_SERVER` and `PROXY_AGENT` name the
//! tested programs, so the same tests run against any other implementation.

pub mod adversarial;
pub mod arguments;
pub mod balancer;
pub mod bench;
pub mod cases;
pub mod crowd;
pub mod endpoints;
pub mod exchange;
pub mod faults;
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
pub mod scale;
pub mod scenarios;
pub mod soak;
pub mod sockets;
pub mod stalls;
pub mod tokens;
pub mod usage;
pub mod wait;
pub mod wan;
