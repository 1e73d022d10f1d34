//! The number of servers by their leases: watched, counted, and passed to the client set.
//!
//! [`cache`] has the rules (when a lease counts) without clock or socket; [`counter`] is the task that lists and watches. No
//! other task waits for it: there is no count until the first list succeeds, and while the API cannot be reached the last count
//! holds.

mod cache;
mod counter;
mod selector;

pub use counter::LeaseCounter;
pub use selector::LabelSelector;
