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
        Certificate => "certificate",
    }
}

/// What is odd about a certificate, by transport's label for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct OddCertificate(pub(super) &'static str);

impl OddCertificate {
    fn name(self) -> &'static str {
        self.0
    }
}

serve::label!(OddCertificate in "reason");
