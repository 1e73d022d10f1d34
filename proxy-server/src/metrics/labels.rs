//! Label values that belong to no other module.

use transport::tls::HandshakeError;

serve::label! {
    /// The gRPC method that a stream belongs to.
    pub enum ServiceMethod in "service_method" {
        /// `/ProxyService/Proxy`, frontends.
        Proxy => "Proxy",
        /// `/AgentService/Connect`, agents.
        Connect => "Connect",
    }
}

serve::label! {
    /// How agents prove who they are.
    pub enum AgentAuthMode in "mode" {
        /// Not at all: anybody who reaches the port is an agent.
        None => "none",
        /// By a service account's token.
        Token => "token",
        /// By a client certificate.
        Certificate => "mtls",
    }
}

serve::label! {
    /// What became of a token's review.
    pub enum ReviewResult in "result" {
        /// It is an agent's.
        Accepted => "accepted",
        /// It is not.
        Refused => "refused",
        /// The Kubernetes API could not be asked.
        Failed => "failed",
    }
}

serve::label! {
    /// What an agent claimed without a right to it.
    pub enum Claim in "claim" {
        /// Its name.
        AgentId => "agent_id",
        /// A host's name.
        Host => "host",
        /// An address.
        Address => "address",
        /// A network.
        Network => "network",
        /// The default route.
        DefaultRoute => "default_route",
    }
}

serve::label! {
    /// What was done about a claim.
    pub enum ClaimAction in "action" {
        /// It was logged.
        Logged => "logged",
        /// The agent was refused.
        Refused => "refused",
    }
}

serve::label! {
    /// A port with TLS.
    pub enum Port in "port" {
        /// `--agent-port`.
        Agent => "agent",
        /// `--server-port`.
        Frontend => "frontend",
    }
}

serve::label! {
    /// Why the server closed a connection whose peer had not been authenticated.
    pub enum CloseReason in "reason" {
        /// It was closed for a new one, since the limit was reached.
        Evicted => "evicted",
        /// The connection limit for admitted agents is reached.
        AgentLimit => "agent_limit",
        /// The handshake took too long.
        HandshakeTimeout => "handshake_timeout",
        /// The handshake took too many bytes.
        HandshakeTooLarge => "handshake_too_large",
        /// The handshake failed: no TLS, nothing in common, or a certificate that is not accepted.
        HandshakeFailed => "handshake_failed",
        /// No stream was accepted in time behind the handshake.
        NotAdmitted => "not_admitted",
        /// It sent too much before a stream was accepted.
        SentTooMuch => "sent_too_much",
    }
}

impl CloseReason {
    /// Why this handshake was given up.
    pub fn of(error: &HandshakeError) -> Self {
        match error {
            HandshakeError::Timeout(_) => CloseReason::HandshakeTimeout,
            HandshakeError::TooLarge => CloseReason::HandshakeTooLarge,
            _ => CloseReason::HandshakeFailed,
        }
    }

    /// Whether it is the port that is full, and not the peer that failed.
    pub fn is_limit_of_port(self) -> bool {
        matches!(self, CloseReason::Evicted | CloseReason::AgentLimit)
    }
}

serve::label! {
    /// Whose certificate bore no allowed name.
    pub enum PeerKind in "peer" {
        /// An agent's.
        Agent => "agent",
        /// A frontend's.
        Frontend => "frontend",
    }
}
