//! TLS, sockets, HTTP/2 and gRPC framing.

pub mod authority;
pub mod env_proxy;
pub mod host_port;
pub mod joined;
pub mod kernel;
pub mod listen;
#[cfg(test)]
mod raw;
pub mod scratch;
pub mod tls;
pub mod wire;
