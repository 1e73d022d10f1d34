//! Spellings of values as Go's standard library reads and prints them.
//!
//! Each module is one parser with its error. None of them trims blanks: Go does not either.

pub mod boolean;
pub mod duration;
pub mod float;
pub mod integer;
pub mod list;
