//! What reads bytes of strangers, as functions that take any bytes and panic where something does not hold. Through
//! public functions of the crates alone, and without a socket.
//!
//! `fuzz/libfuzzer` drives them by libFuzzer (`hack/nightly fuzz`); `cargo test -p fuzz` replays the corpus and tries
//! random bytes, on any toolchain. An input that was once a fault is kept in the corpus.

mod authority;
mod connect;
mod durations;
mod grpc;
mod http2;
mod input;
mod no_proxy;
mod packets;
mod tunnel_core;

pub use authority::authority;
pub use connect::connect;
pub use durations::durations;
pub use grpc::grpc;
pub use no_proxy::no_proxy;
pub use packets::packets;
pub use tunnel_core::tunnel_core;

/// Takes any bytes.
pub type Target = fn(&[u8]);

/// All of them, by the names of their folders in `fuzz/corpus` and of their programs in `fuzz/libfuzzer`.
pub const TARGETS: [(&str, Target); 7] = [
    ("authority", authority),
    ("connect", connect),
    ("durations", durations),
    ("grpc", grpc),
    ("no_proxy", no_proxy),
    ("packets", packets),
    ("tunnel_core", tunnel_core),
];
