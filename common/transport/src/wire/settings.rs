//! The limits and windows of HTTP/2 connections: each a constant with its reason.

use std::time::Duration;

use super::{Buffering, Keepalive, Unadmitted};

/// An agent stream's receive window in bytes: what may arrive from a peer before anything was handed out, and what one
/// stalled stream costs in memory. 1 MiB keeps a link of a GiB a second busy at 1 ms of round trip.
pub(super) const STREAM_WINDOW: u32 = 1 << 20;

/// The same where the way is longer, at most: as wide as grpc-go's grows. With 8 MiB sixteen transfers over 50 ms were a
/// sixth slower.
const FAR_STREAM_WINDOW: u32 = 16 << 20;

/// The window of agents' streams over a way of that round trip, in bytes.
pub(super) fn stream_window(round_trip: Duration) -> u32 {
    tunnel::in_flight(round_trip, STREAM_WINDOW, FAR_STREAM_WINDOW)
}

/// The agent hop's connection window in bytes: 64 stalled streams, 4 over a long way. An agent has one, at most 8.
const AGENT_CONNECTION_WINDOW: u32 = 64 << 20;

/// The receive window of a frontend's stream in bytes, which is what one that nobody drains costs in memory; there may be
/// thousands. kube-apiserver is near: this keeps a link of a GiB a second busy at a quarter of a millisecond.
const FRONTEND_STREAM_WINDOW: u32 = 256 << 10;

/// The frontend's connection window in bytes, HTTP/2's largest: clients may share one connection among
/// thousands of streams, and the stalled ones must leave room for the others.
const FRONTEND_CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// The largest frame in bytes taken on the agent hop: a DATA of 64 KiB and its head stay one frame
/// (16 KiB frames cost 13 to 20 % CPU; above 128 KiB nothing more is gained).
const AGENT_FRAME: u32 = 128 << 10;

/// The largest frame in bytes taken from frontends: HTTP/2's default, which grpc-go never exceeds, and the most
/// that the authority patch holds back.
const FRONTEND_FRAME: u32 = 16 << 10;

/// Header list limits in bytes. An agent sends its id, 256 identifiers and a token of 16 KiB at most; a
/// frontend may carry more of its user's metadata.
const AGENT_HEADER_LIST: u32 = 64 << 10;
const FRONTEND_HEADER_LIST: u32 = 256 << 10;

/// Bytes that may wait unsent in HTTP/2 behind a slow socket, per stream. Control packets queue behind them, so
/// they are few; they are enough for four frames of 64 KiB.
pub(super) const SEND_BUFFER: usize = 256 << 10;

/// The receive windows until a stream is accepted, in bytes: of the connection (HTTP/2 allows no less) and of each stream.
/// Agents send no data before they are accepted, so an unauthenticated peer has nothing to make HTTP/2 hold.
const UNADMITTED_CONNECTION_WINDOW: u32 = (1 << 16) - 1;
const UNADMITTED_STREAM_WINDOW: u32 = 0;

/// h2's budget against unread small DATA frames (one of n < 256 bytes costs 256 - n until it is read), beyond which it ends the
/// connection. Streams are read at once, also those that stand still: what is unread arrived within one turn. Room for
/// 130,000 frames of a byte.
const AGENT_FRAME_BUDGET: usize = 32 << 20;

/// The same for frontends, which may have many such streams on one connection: room for 113 stalled ones. They are
/// authenticated by certificate or by the socket's mode.
const FRONTEND_FRAME_BUDGET: usize = 512 << 20;

/// How long a peer that completed its transport handshake may take until a stream of it is accepted: a token review
/// takes 10 s at most.
const ADMISSION: Duration = Duration::from_secs(15);

/// How long an agent may take to open another stream on a connection that has none left.
const STREAMLESS: Duration = Duration::from_secs(10);

/// What a server's connection says when it is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// GOAWAY at once: clients finish their streams and open new ones elsewhere.
    GoAway,
    /// New streams are refused as Unavailable, and the connection ends with its last stream. grpc-go's agent
    /// tears down its live tunnels on GOAWAY, so it must not see one while it has any.
    WhenIdle,
}

/// How a listener runs its HTTP/2 connections.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Streams at once that a client may have.
    pub max_concurrent_streams: u32,
    /// Bytes of a header list, by HTTP/2's count (32 per field on top).
    pub max_header_list: u32,
    /// Whether peers are unauthenticated until a stream of theirs is accepted: windows are small until then, and what they send
    /// is charged.
    pub unadmitted: Option<Unadmitted>,
    /// Receive window of a stream, bytes.
    pub initial_stream_window: u32,
    /// Receive window of the connection, bytes.
    pub initial_connection_window: u32,
    /// The largest frame taken, bytes.
    pub max_frame_size: u32,
    /// Streams in a connection's life that may fail by the peer's fault before GOAWAY; the count never
    /// falls and includes refused streams.
    pub max_local_error_resets: usize,
    /// Streams that the peer opened and reset before they were accepted, at once.
    pub max_pending_accept_resets: usize,
    /// Bytes that wait unsent per stream.
    pub max_send_buffer: usize,
    /// h2's budget for unread small DATA frames.
    pub data_frame_budget: usize,
    /// What lies between HTTP/2 and the transport.
    pub buffering: Buffering,
    /// Pings to silent peers.
    pub keepalive: Keepalive,
    /// How long a connection may live before a stream of it is accepted (refused ones do not count); `None` is for ever.
    pub admission_timeout: Option<Duration>,
    /// How long it may be without a stream later on; `None` is for ever.
    pub next_stream_timeout: Option<Duration>,
    /// How a connection ends at shutdown.
    pub farewell: Farewell,
}

impl ServerSettings {
    /// For the agent port: one stream per connection in practice, few resets, Go agents that fear GOAWAY.
    pub fn for_agents() -> Self {
        ServerSettings {
            max_concurrent_streams: 8,
            max_header_list: AGENT_HEADER_LIST,
            unadmitted: Some(Unadmitted::default()),
            initial_stream_window: STREAM_WINDOW,
            initial_connection_window: AGENT_CONNECTION_WINDOW,
            max_frame_size: AGENT_FRAME,
            max_local_error_resets: 1_024,
            max_pending_accept_resets: 20,
            max_send_buffer: SEND_BUFFER,
            data_frame_budget: AGENT_FRAME_BUDGET,
            buffering: Buffering::OVER_TLS,
            keepalive: Keepalive { interval: Duration::from_secs(3600), ..Keepalive::DEFAULT },
            admission_timeout: Some(ADMISSION),
            // Agents open a connection for each stream: one that has lost it is of no use.
            next_stream_timeout: Some(STREAMLESS),
            farewell: Farewell::WhenIdle,
        }
    }

    /// For the frontend listeners: long-lived connections that may be shared among thousands of dials, many of
    /// which are cancelled.
    pub fn for_frontends() -> Self {
        ServerSettings {
            max_concurrent_streams: 10_000,
            max_header_list: FRONTEND_HEADER_LIST,
            unadmitted: None,
            initial_stream_window: FRONTEND_STREAM_WINDOW,
            initial_connection_window: FRONTEND_CONNECTION_WINDOW,
            max_frame_size: FRONTEND_FRAME,
            max_local_error_resets: 65_536,
            max_pending_accept_resets: 1_000,
            max_send_buffer: SEND_BUFFER,
            data_frame_budget: FRONTEND_FRAME_BUDGET,
            buffering: Buffering::OVER_SOCKET,
            keepalive: Keepalive { interval: Duration::from_secs(3600), ..Keepalive::DEFAULT },
            admission_timeout: Some(ADMISSION),
            // Known clients, which may keep a connection for the next dial.
            next_stream_timeout: None,
            farewell: Farewell::GoAway,
        }
    }

    /// The windows that a connection begins with: its own, and that of its streams.
    pub(super) fn first_windows(&self) -> (u32, u32) {
        match self.unadmitted {
            Some(_) => (UNADMITTED_CONNECTION_WINDOW, UNADMITTED_STREAM_WINDOW),
            None => (self.initial_connection_window, self.initial_stream_window),
        }
    }

    pub(super) fn builder(&self) -> h2::server::Builder {
        let (connection_window, stream_window) = self.first_windows();
        let mut builder = h2::server::Builder::new();
        builder
            .max_concurrent_streams(self.max_concurrent_streams)
            .max_header_list_size(self.max_header_list)
            .initial_window_size(stream_window)
            .initial_connection_window_size(connection_window)
            .max_frame_size(self.max_frame_size)
            .max_local_error_reset_streams(Some(self.max_local_error_resets))
            .max_pending_accept_reset_streams(self.max_pending_accept_resets)
            .max_send_buffer_size(self.max_send_buffer)
            .data_frame_budget(self.data_frame_budget);
        builder
    }
}

/// How an agent runs its connection to a server.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Bytes of a header list.
    pub max_header_list: u32,
    /// Receive window of the stream, bytes.
    pub initial_stream_window: u32,
    /// Receive window of the connection, bytes.
    pub initial_connection_window: u32,
    /// The largest frame taken, bytes.
    pub max_frame_size: u32,
    /// Bytes that wait unsent.
    pub max_send_buffer: usize,
    /// h2's budget for unread small DATA frames.
    pub data_frame_budget: usize,
    /// Pings to a silent server.
    pub keepalive: Keepalive,
    /// The `user-agent`.
    pub user_agent: &'static str,
}

impl ClientSettings {
    /// For the agent's one stream to one server, the mirror of [`ServerSettings::for_agents`]. Its pings follow
    /// grpc-go's agent until the server is known to be one of ours.
    pub fn for_agents() -> Self {
        ClientSettings {
            max_header_list: AGENT_HEADER_LIST,
            initial_stream_window: STREAM_WINDOW,
            initial_connection_window: AGENT_CONNECTION_WINDOW,
            max_frame_size: AGENT_FRAME,
            max_send_buffer: SEND_BUFFER,
            data_frame_budget: AGENT_FRAME_BUDGET,
            keepalive: Keepalive { interval: Duration::from_secs(3600), ..Keepalive::DEFAULT },
            user_agent: concat!("konnectivity/", env!("CARGO_PKG_VERSION")),
        }
    }

    pub(super) fn builder(&self) -> h2::client::Builder {
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .max_header_list_size(self.max_header_list)
            .initial_window_size(self.initial_stream_window)
            .initial_connection_window_size(self.initial_connection_window)
            .max_frame_size(self.max_frame_size)
            .max_send_buffer_size(self.max_send_buffer)
            .data_frame_budget(self.data_frame_budget);
        builder
    }
}
