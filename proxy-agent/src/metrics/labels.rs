//! Label values of the agent.

serve::label! {
    /// The direction of packets on a stream to a server.
    pub enum Direction in "direction" {
        /// Received.
        FromServer => "from_server",
        /// Sent.
        ToServer => "to_server",
    }
}

serve::label! {
    /// The result of an attempt to connect to a server; as proposed for Go.
    pub enum AttemptResult in "result" {
        /// A stream that the agent keeps.
        Connected => "connected",
        /// Closed at once: the agent has a stream to this server, or drains.
        Duplicate => "duplicate",
        /// No stream.
        Error => "error",
    }
}

serve::label! {
    /// How a stream to a server was lost; as proposed for Go.
    pub enum LostReason in "reason" {
        /// The server ended it in order.
        Eof => "eof",
        /// It broke.
        RecvError => "recv_error",
    }
}

serve::label! {
    /// Why a dial of an endpoint failed; only the two reasons of Go.
    pub enum DialFailureReason in "reason" {
        /// The endpoint did not answer in time.
        Timeout => "timeout",
        /// Any other reason.
        Unknown => "unknown",
    }
}
