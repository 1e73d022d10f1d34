//! TLS, sockets, HTTP/2 and gRPC framing.

pub mod wire;
