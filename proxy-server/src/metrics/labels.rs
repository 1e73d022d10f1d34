//! Label values that belong to no other module.

use mux::{Cause, CloseReason};
use net::tls::HandshakeError;

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
    /// How an established connection ended. Go is proposed to have `backend_close`.
    pub enum ClosedReason in "reason" {
        /// In order: either side closed it.
        Closed => "closed",
        /// The client's side failed, or the client left before the connection was used.
        FrontendClose => "frontend_close",
        /// The agent stream was lost.
        BackendClose => "backend_close",
        /// Any other reason; see `connection_resets_total`.
        Error => "error",
    }
}

impl From<&CloseReason> for ClosedReason {
    fn from(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::Flushed => ClosedReason::Closed,
            CloseReason::Broken(Cause::LinkLost) => ClosedReason::BackendClose,
            CloseReason::Broken(Cause::Local(_)) => ClosedReason::FrontendClose,
            CloseReason::Broken(_) => ClosedReason::Error,
        }
    }
}

serve::label! {
    /// The authentication method of agents.
    pub enum AgentAuthMode in "mode" {
        /// None: any peer that reaches the port is an agent.
        None => "none",
        /// By a service account's token.
        Token => "token",
        /// By a client certificate.
        Certificate => "mtls",
    }
}

serve::label! {
    /// The result of a token review.
    pub enum ReviewResult in "result" {
        /// The token is an agent's.
        Accepted => "accepted",
        /// The token was refused.
        Refused => "refused",
        /// The Kubernetes API did not answer.
        Failed => "failed",
    }
}

serve::label! {
    /// A claim that an agent's identity does not allow.
    pub enum Claim in "claim" {
        /// The agent id.
        AgentId => "agent_id",
        /// A host name.
        Host => "host",
        /// An IP address.
        Address => "address",
        /// A network.
        Network => "network",
        /// The default route.
        DefaultRoute => "default_route",
    }
}

serve::label! {
    /// The action on a claim.
    pub enum ClaimAction in "action" {
        /// The claim was logged.
        Logged => "logged",
        /// The agent was refused.
        Refused => "refused",
    }
}

serve::label! {
    /// A TLS port.
    pub enum Port in "port" {
        /// `--agent-port`.
        Agent => "agent",
        /// `--server-port`.
        Frontend => "frontend",
    }
}

impl Port {
    /// The name of the listener in the status.
    pub const fn listener(self) -> &'static str {
        match self {
            Port::Agent => "agents",
            Port::Frontend => "frontend",
        }
    }
}

serve::label! {
    /// A frontend, as `--frontend` names it. The text stays until the end of the process: there is one for each `--frontend`.
    pub struct FrontendName in "frontend"
}

serve::label! {
    /// Why the server closed the connection of an unauthenticated peer.
    pub enum UnauthenticatedCloseReason in "reason" {
        /// It was closed for a new one because the limit was reached.
        Evicted => "evicted",
        /// The connection limit for admitted agents is reached.
        AgentLimit => "agent_limit",
        /// The handshake timed out.
        HandshakeTimeout => "handshake_timeout",
        /// The peer sent too many bytes in the handshake.
        HandshakeTooLarge => "handshake_too_large",
        /// The handshake failed: no TLS, no common parameters, or a certificate that is not accepted.
        HandshakeFailed => "handshake_failed",
        /// No stream was admitted in time after the handshake.
        NotAdmitted => "not_admitted",
        /// The peer sent too many bytes before a stream was admitted.
        SentTooMuch => "sent_too_much",
    }
}

impl UnauthenticatedCloseReason {
    /// The reason for this handshake error.
    pub fn of(error: &HandshakeError) -> Self {
        match error {
            HandshakeError::Timeout(_) => UnauthenticatedCloseReason::HandshakeTimeout,
            HandshakeError::TooLarge => UnauthenticatedCloseReason::HandshakeTooLarge,
            _ => UnauthenticatedCloseReason::HandshakeFailed,
        }
    }
}

serve::label! {
    /// Why a stream that was opened on the agent port is refused.
    pub enum RefusedConnect in "reason" {
        /// It is no `AgentService/Connect`.
        Path => "path",
        /// The agent is not authenticated: its token is missing, refused or not reviewed, or its certificate has no allowed name.
        Authentication => "authentication",
        /// The metadata is no agent's.
        Metadata => "metadata",
        /// The identity does not allow the agent id or an identifier.
        Identity => "identity",
        /// The connection limit for agents is reached.
        AgentLimit => "agent_limit",
        /// The agent id has too many streams, or there are too many agents.
        Registration => "registration",
    }
}

serve::label! {
    /// The owner of a certificate without an allowed name.
    pub enum PeerKind in "peer" {
        /// An agent.
        Agent => "agent",
        /// A frontend.
        Frontend => "frontend",
    }
}
