//! Handshakes with generated certificates.

mod authorities;
mod cases;
mod files;
mod flags;
mod handshake;
mod identity;
mod negotiation;
mod odd;
mod odd_handshake;
mod pki;
mod reload;
mod sessions;
mod watch;
mod world;
