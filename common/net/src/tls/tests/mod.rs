//! Handshakes with generated certificates.

mod authorities;
mod cases;
mod files;
mod flags;
mod handshake;
mod identity;
mod legacy;
mod legacy_handshake;
mod negotiation;
mod pki;
mod reload;
mod sessions;
mod watch;
mod world;
