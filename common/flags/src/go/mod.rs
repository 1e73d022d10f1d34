//! Value formats of Go's standard library.
//!
//! Each module has one parser and its error. No parser trims blanks, as in Go.

pub mod boolean;
pub mod duration;
pub mod float;
pub mod integer;
pub mod list;
