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
    /// Why a dial of an endpoint failed; only the two reasons of Go.
    pub enum DialFailureReason in "reason" {
        /// The endpoint did not answer in time.
        Timeout => "timeout",
        /// Any other reason.
        Unknown => "unknown",
    }
}
