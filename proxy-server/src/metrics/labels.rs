//! Label values that belong to no other module.

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
    /// Whose certificate bore no allowed name.
    pub enum PeerKind in "peer" {
        /// An agent's.
        Agent => "agent",
        /// A frontend's.
        Frontend => "frontend",
    }
}
