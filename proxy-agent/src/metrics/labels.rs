//! Label values of the agent.

serve::label! {
    /// Which way, on a stream to a server.
    pub enum Direction in "direction" {
        /// Received.
        FromServer => "from_server",
        /// Sent.
        ToServer => "to_server",
    }
}

serve::label! {
    /// Why an endpoint could not be dialled, as coarse as Go has it.
    pub enum DialFailureReason in "reason" {
        /// It did not answer in time.
        Timeout => "timeout",
        /// Everything else.
        Unknown => "unknown",
    }
}
