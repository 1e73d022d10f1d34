//! The wire contract: the messages of `konnectivity.proto`, as prost generates them, and nothing else.
//!
//! Never read `Packet::type` through the generated getter: it maps an unknown number to `DIAL_REQ`.
//! The tunnel decodes packets with these messages and turns them into its own closed enum. It encodes by hand; the tests of that
//! encoder compare it with these messages, and test peers use them.

#![allow(missing_docs, reason = "generated code; the .proto carries the comments")]

include!("messages.rs");
