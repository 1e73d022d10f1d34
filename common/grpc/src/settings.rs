//! The limits and windows of HTTP/2 connections. Each is a constant with its reason.

use std::time::Duration;

use super::buffered::{MAX_GATHERED_OVER_SOCKET, MAX_GATHERED_OVER_TLS};
use super::{BusyTurns, Keepalive, Unadmitted};

/// An agent stream's receive window, in bytes: the most that a peer may send before the link reads anything, and the memory
/// that one stalled stream costs. 256 KiB saturate a link of 1 GiB/s at 0.25 ms RTT. (What is sent and unread delays all that
/// follows: with 1 MiB, pings beside 16 transfers took up to twice as long.)
pub(super) const STREAM_WINDOW: u32 = 256 << 10;

/// The largest receive window at a higher RTT, in bytes: the limit of grpc-go's window, too. With 8 MiB, 16 transfers at
/// 50 ms RTT had a sixth less throughput.
const HIGH_BDP_STREAM_WINDOW: u32 = 16 << 20;

/// The receive window of an agent stream at this RTT, in bytes.
pub(super) fn stream_window(rtt: Duration) -> u32 {
    mux::bdp(rtt, STREAM_WINDOW, HIGH_BDP_STREAM_WINDOW)
}

/// Whether [`STREAM_WINDOW`] limits the throughput at this RTT.
pub(super) fn needs_wide_window(rtt: Duration) -> bool {
    stream_window(rtt) > STREAM_WINDOW
}

/// The connection window between agents and servers, in bytes: enough for 256 stalled streams, or 4 at a high RTT. An agent
/// has one stream, and may have 8.
const AGENT_CONNECTION_WINDOW: u32 = 64 << 20;

/// The receive window of a frontend's stream, in bytes: the memory that one stalled stream costs, and there may be thousands.
/// kube-apiserver is near: this window saturates a link of 1 GiB/s at 0.25 ms RTT.
const FRONTEND_STREAM_WINDOW: u32 = 256 << 10;

/// The connection window of a frontend, in bytes: HTTP/2's largest. Clients may share one connection among thousands of
/// streams, and stalled streams must leave window for the others.
const FRONTEND_CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// The largest frame accepted between agents and servers, in bytes: a DATA of 64 KiB and its head fit into one frame.
/// (Frames of 16 KiB cost 13 to 20 % more CPU; frames above 128 KiB gain nothing.)
const AGENT_FRAME: u32 = 128 << 10;

/// The largest frame accepted from frontends, in bytes: HTTP/2's default, which grpc-go never exceeds, and the most that the
/// `:authority` patch buffers.
const FRONTEND_FRAME: u32 = 16 << 10;

/// The limits of header lists, in bytes. An agent sends its id, 256 identifiers and a token of at most 16 KiB, a frontend little
/// metadata (kube-apiserver about 300 bytes). h2 decodes four times as much before it ends the connection, so compressed headers of
/// a few KiB take CPU time in proportion to this limit.
const AGENT_HEADER_LIST: u32 = 64 << 10;
const FRONTEND_HEADER_LIST: u32 = 32 << 10;

/// The unsent bytes that HTTP/2 may queue for one stream: enough for four frames of 64 KiB. The limit is low because control
/// packets queue behind these bytes.
pub(super) const SEND_BUFFER: usize = 256 << 10;

/// The receive windows until a stream is accepted, in bytes: of the connection (HTTP/2's minimum) and of each stream. An agent
/// sends no data before the server accepts it; h2spec's cases need a few bytes. A peer that does not acknowledge the settings may still fill the connection's
/// window; h2 ends the connection if more than 128 of its small frames are unread (half of this window, see below).
const UNADMITTED_CONNECTION_WINDOW: u32 = (1 << 16) - 1;
const UNADMITTED_STREAM_WINDOW: u32 = 64;

/// h2's budget for unread small DATA frames of frontends: a frame of n < 256 bytes costs 256 - n until it is read, and h2 ends a
/// connection that exceeds the budget. Frontends may have many streams on one connection: the budget is enough for 113 stalled
/// streams. On the agent hop the budget is h2's default, half of the connection's window, and grows with it.
const FRONTEND_FRAME_BUDGET: usize = 512 << 20;

/// The most concurrent streams of a frontend's connection. kube-apiserver may send all of its dials over one connection. A gRPC
/// client waits silently at this limit, so it is above the server's limit of all streams, at which the client gets an answer.
const FRONTEND_STREAMS: u32 = 1 << 16;

/// How long the server ignores frames of a stream that it has reset: as long as a busy client may take to read the reset.
const RESETS_REMEMBERED_FOR: Duration = Duration::from_secs(10);

/// The time limit from the transport handshake to the first accepted stream (refused streams do not count), with authenticated peers
/// to their preface. A token review takes at most 10 s.
pub(super) const ADMISSION_TIMEOUT: Duration = Duration::from_secs(15);

/// The time limit for an agent to open another stream after its connection's last stream has ended.
const STREAMLESS_TIMEOUT: Duration = Duration::from_secs(10);

/// How a listener runs its HTTP/2 connections.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The most concurrent streams of a client.
    pub max_concurrent_streams: u32,
    /// The most bytes of a header list, as HTTP/2 counts them (32 more for each field).
    pub max_header_list: u32,
    /// Set if peers are unauthenticated until a stream is accepted: until then their windows are small, and the bytes that they
    /// send are charged here.
    pub unadmitted: Option<Unadmitted>,
    /// The receive window of a stream, in bytes.
    pub initial_stream_window: u32,
    /// The receive window of the connection, in bytes.
    pub initial_connection_window: u32,
    /// The largest accepted frame, in bytes.
    pub max_frame_size: u32,
    /// How many streams of a connection may fail by the peer's fault before the server sends GOAWAY. The count never decreases
    /// and includes refused streams.
    pub max_local_error_resets: usize,
    /// How many streams may be pending that the peer opened and reset before the server accepted them.
    pub max_pending_accept_resets: usize,
    /// How many streams that the server reset are remembered, for [`RESETS_REMEMBERED_FOR`]: frames that the peer sent before it
    /// saw the reset are ignored. For a forgotten stream each counts as a failed stream.
    pub max_remembered_resets: usize,
    /// h2's budget for unread small DATA frames. `None`: half of the connection's window.
    pub data_frame_budget: Option<usize>,
    /// The most bytes that are gathered before the transport.
    pub max_gathered: usize,
    /// The turns of the listener's connections.
    pub turns: BusyTurns,
    /// The pings to peers that send nothing.
    pub keepalive: Keepalive,
    /// The time limit without any stream after the first accepted one; `None`: no limit.
    pub next_stream_timeout: Option<Duration>,
}

impl ServerSettings {
    /// For the agent port: one stream per connection in practice, few resets.
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
            max_remembered_resets: 50,
            data_frame_budget: None,
            max_gathered: MAX_GATHERED_OVER_TLS,
            turns: BusyTurns::default(),
            keepalive: Keepalive { interval: Duration::from_secs(3600), ..Keepalive::DEFAULT },
            // Agents open a connection for each stream, so a connection without its stream is useless.
            next_stream_timeout: Some(STREAMLESS_TIMEOUT),
        }
    }

    /// For the frontend listeners: thousands of dials may share a long-lived connection, and clients cancel many of them.
    pub fn for_frontends() -> Self {
        ServerSettings {
            max_concurrent_streams: FRONTEND_STREAMS,
            max_header_list: FRONTEND_HEADER_LIST,
            unadmitted: None,
            initial_stream_window: FRONTEND_STREAM_WINDOW,
            initial_connection_window: FRONTEND_CONNECTION_WINDOW,
            max_frame_size: FRONTEND_FRAME,
            max_local_error_resets: 65_536,
            max_pending_accept_resets: 1_000,
            // The loss of an agent ends all streams of a connection at once.
            max_remembered_resets: FRONTEND_STREAMS as usize,
            data_frame_budget: Some(FRONTEND_FRAME_BUDGET),
            max_gathered: MAX_GATHERED_OVER_SOCKET,
            turns: BusyTurns::default(),
            keepalive: Keepalive { interval: Duration::from_secs(3600), ..Keepalive::DEFAULT },
            // Authenticated clients may keep a connection for the next dial.
            next_stream_timeout: None,
        }
    }

    /// The initial windows, in bytes: the connection's, and that of each stream.
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
            .max_concurrent_reset_streams(self.max_remembered_resets)
            .reset_stream_duration(RESETS_REMEMBERED_FOR)
            .max_send_buffer_size(SEND_BUFFER);
        if let Some(budget) = self.data_frame_budget {
            builder.data_frame_budget(budget);
        }
        builder
    }
}

/// An agent's connection to a server, with one stream: the counterpart of [`ServerSettings::for_agents`].
pub(super) fn client_builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .max_header_list_size(AGENT_HEADER_LIST)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(AGENT_CONNECTION_WINDOW)
        .max_frame_size(AGENT_FRAME)
        .max_send_buffer_size(SEND_BUFFER);
    builder
}
