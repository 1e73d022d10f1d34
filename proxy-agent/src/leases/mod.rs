//! How many servers there are, by their leases: watched, counted, and told to the client set.
//!
//! [`book`] has the rules (when a lease counts) without clock or socket; [`counter`] is the task that lists, watches
//! and asks again. Nobody waits for it: until the first list succeeds there is no count, and while the API cannot
//! be reached the last count holds.

mod book;
mod counter;

pub use counter::{CounterSettings, LeaseCounter};
