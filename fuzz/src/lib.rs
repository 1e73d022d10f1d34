//! Fuzz targets for the parsers of untrusted bytes: functions that accept any bytes and panic if a property does not
//! hold. They use only public functions of the crates, and no socket.
//!
//! `fuzz/libfuzzer` runs them under libFuzzer (`hack/nightly fuzz`); `cargo test -p fuzz` replays the corpus and tries
//! random bytes, on any toolchain. Inputs that once revealed a fault stay in the corpus.

mod authority;
mod certificate;
mod connect;
mod durations;
mod grpc;
mod host_port;
mod http2;
mod input;
mod no_proxy;
mod packets;
mod tunnel_core;

pub use self::grpc::grpc;
pub use authority::authority;
pub use certificate::certificate;
pub use connect::connect;
pub use durations::durations;
pub use host_port::host_port_target as host_port;
pub use no_proxy::no_proxy;
pub use packets::packets;
pub use tunnel_core::tunnel_core;

/// A function that accepts any bytes.
pub type Target = fn(&[u8]);

/// All targets, by the names of their folders in `fuzz/corpus` and of their programs in `fuzz/libfuzzer`.
pub const TARGETS: [(&str, Target); 9] = [
    ("authority", authority),
    ("certificate", certificate),
    ("connect", connect),
    ("durations", durations),
    ("grpc", grpc),
    ("host_port", host_port),
    ("no_proxy", no_proxy),
    ("packets", packets),
    ("tunnel_core", tunnel_core),
];
