//! The wire contract: the messages of `konnectivity.proto`, as prost generates them, and nothing else.
//!
//! Never read `Packet::type` through the generated getter: it maps an unknown number to `DIAL_REQ`.
//! The tunnel reads and writes packets with these messages, and turns them into its own closed enum. It writes the head of DATA
//! itself; the tests of the codec compare it with these messages, and test peers use them.

#![allow(missing_docs, reason = "generated code; the .proto carries the comments")]

include!("messages.rs");
