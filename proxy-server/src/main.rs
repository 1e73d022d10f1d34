//! (stub)
fn main() {}
