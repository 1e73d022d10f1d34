//! The wire contract: the messages of `konnectivity.proto`, as prost generates them, and nothing else.
//!
//! Never read `Packet::type` through the generated getter: it maps an unknown number to `DIAL_REQ`.
//! The tunnel decodes into its own closed enum; these messages serve as the oracle of that codec's tests and
//! as the types of test peers.

#![allow(missing_docs, reason = "generated code; the .proto carries the comments")]

include!("messages.rs");
