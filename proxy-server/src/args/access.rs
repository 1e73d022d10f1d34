//! Flags of who is let in as an agent.

use flags::{FlagSet, Refusal};

use super::TokenAuth;

/// The flags as they are written.
#[derive(Debug, Default)]
pub(super) struct Lines {
    require_agent_auth: bool,
    agent_namespace: String,
    agent_service_account: String,
    authentication_audience: String,
}

/// What they mean.
pub(super) struct Access {
    pub(super) required: bool,
    pub(super) token_auth: Option<TokenAuth>,
}

impl Lines {
    pub(super) fn lend<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Authentication of agents");
        set.add(
            "require-agent-auth",
            &mut self.require_agent_auth,
            "Refuse to start when nothing authenticates agents. (Not a flag of the Go proxy-server.)",
        );
        set.add("agent-namespace", &mut self.agent_namespace, "Namespace of the agents' service account.");
        set.add(
            "agent-service-account",
            &mut self.agent_service_account,
            "Service account whose tokens let agents in.",
        );
        set.add(
            "authentication-audience",
            &mut self.authentication_audience,
            "Audience that agents' tokens must be for.",
        );
    }

    /// `by_certificate`: agents show certificates. All three of the token's flags or none; certificates and
    /// tokens exclude each other.
    pub(super) fn check(self, by_certificate: bool) -> Result<Access, Refusal> {
        let flags = [
            ("agent-namespace", self.agent_namespace),
            ("agent-service-account", self.agent_service_account),
            ("authentication-audience", self.authentication_audience),
        ];
        let required = self.require_agent_auth;
        let Some(given) = flags.iter().find(|(_, text)| !text.is_empty()).map(|(flag, _)| *flag) else {
            if required && !by_certificate {
                let fix = "give the authorities of agents' certificates";
                return Err(Refusal::Needs { flag: "require-agent-auth", other: "cluster-ca-cert", fix });
            }
            return Ok(Access { required, token_auth: None });
        };
        if by_certificate {
            let fix = "agents show either a certificate or a token, drop one";
            return Err(Refusal::Conflict { flag: "cluster-ca-cert", with: given, fix });
        }
        if let Some((missing, _)) = flags.iter().find(|(_, text)| text.is_empty()) {
            let fix = "token authentication takes all of --agent-namespace, --agent-service-account and \
                       --authentication-audience, and is not available in this version";
            return Err(Refusal::Needs { flag: given, other: missing, fix });
        }
        let [(_, namespace), (_, service_account), (_, audience)] = flags;
        Ok(Access { required, token_auth: Some(TokenAuth { namespace, service_account, audience }) })
    }
}
