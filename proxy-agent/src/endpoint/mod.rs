//! The agent's last station: from a dial request to an endpoint's socket, and that socket as a connection's
//! local end.
//!
//! The order of a dial is fixed: [`address`] (what was asked for), [`resolve`] (which addresses that is),
//! [`policy`] (which of them may be reached), [`dial`] (connect to exactly those), [`conn_context`] (the
//! socket, polled by the link's task). A failure is a typed [`DialError`], rendered to prose once. Nothing
//! here knows packets, connect ids or streams.

pub mod address;
pub mod conn_context;
pub mod dial;
pub mod error;
pub mod hosts;
pub mod order;
pub mod policy;
pub mod resolve;

pub use address::Network;
pub use conn_context::{ConnContext, ConnInfo};
pub use dial::{Dialer, Endpoint};
pub use error::{DialError, LookupError};
pub use policy::{DestinationPolicy, DestinationRule};
pub use resolve::{Resolve, SystemResolver};
