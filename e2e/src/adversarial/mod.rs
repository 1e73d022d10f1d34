//! Adversarial peers that speak the protocol packet by packet: frontends, agents and servers.

mod agent;
mod authority;
pub mod forks;
pub mod frames;
mod packets;
mod server;
mod small_frames;
mod stream;
mod token;
pub mod unauthenticated;

pub use self::agent::{AdversarialAgent, AgentMeta};
pub use self::authority::{Authority, dial_with_authority};
pub use self::packets::{
    bare, close_req, close_rsp, crossed, data, dial_cls, dial_req, dial_rsp, drain, unknown,
};
pub use self::server::{AdversarialLink, AdversarialServer};
pub use self::small_frames::{Sent, SmallFrames, endless};
pub use self::stream::{CONNECT, PacketStream, STREAM_WINDOW, channel, channel_with};
pub use self::token::{connect_with_token, refused};
