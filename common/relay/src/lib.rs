//! One task per agent stream: the core, the wire and the local sockets joined.

mod local;

pub use local::{Ending, Local, Read};
