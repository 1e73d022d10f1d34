//! Dials endpoints, and serves their sockets as the local ends of connections.
//!
//! The order of a dial is fixed: [`address`] (the requested destination), [`resolve`] (its addresses), [`policy`] (the allowed
//! addresses), [`dial`] (connects to exactly those), [`conn_context`] (the socket, polled by the link's task). A failure is a
//! typed [`DialError`], rendered to text once. This module does not know packets, connect ids or streams.

pub mod address;
pub mod conn_context;
pub mod dial;
pub mod error;
pub mod order;
pub mod policy;
pub mod resolve;

pub use address::Network;
pub use conn_context::{ConnContext, ConnInfo};
pub use dial::{Dialer, Endpoint};
pub use error::{DialError, Failure, LookupCause, LookupError};
pub use policy::{DestinationPolicy, DestinationRule};
pub use resolve::{LookupResult, Resolve, SystemResolver};
