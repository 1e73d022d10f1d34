//! Flags that decide which agents are admitted and what they may claim.

use std::time::Duration;

use flags::{FlagError, FlagSet, GoDuration, List};

use super::{IdentityBinding, TokenAuth};

/// Shorter intervals would load the API server without effect: an accepted token is cached for a minute.
const LEAST_REVIEW: Duration = Duration::from_secs(60);

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    require_agent_auth: bool,
    agent_namespace: String,
    agent_service_account: String,
    authentication_audience: String,
    token_review_interval: GoDuration,
    agent_identity_binding: String,
    agent_identity_source_address: bool,
    agent_allowed_names: List,
    default_route_allowed_names: List,
}

/// The checked values.
pub(super) struct Access {
    pub(super) token_auth: Option<TokenAuth>,
    pub(super) binding: IdentityBinding,
    pub(super) source_address: bool,
    pub(super) agent_names: Vec<String>,
    pub(super) default_route_names: Vec<String>,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            require_agent_auth: false,
            agent_namespace: String::new(),
            agent_service_account: String::new(),
            authentication_audience: String::new(),
            token_review_interval: GoDuration::ZERO,
            agent_identity_binding: "log".into(),
            agent_identity_source_address: false,
            agent_allowed_names: List::default(),
            default_route_allowed_names: List::default(),
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Authentication of agents");
        set.add(
            "require-agent-auth",
            &mut self.require_agent_auth,
            "Refuse to start if agents are not authenticated. (Not a flag of the Go proxy-server.)",
        );
        set.add("agent-namespace", &mut self.agent_namespace, "Namespace of the agents' service account.");
        set.add(
            "agent-service-account",
            &mut self.agent_service_account,
            "Service account whose tokens admit agents. The Kubernetes API reviews each token.",
        );
        set.add(
            "authentication-audience",
            &mut self.authentication_audience,
            "Audience that agents' tokens must have.",
        );
        set.add(
            "token-review-interval",
            &mut self.token_review_interval,
            "Interval at which the tokens of open agent streams are reviewed again. A stream ends once its token is \
             refused: at most this interval plus 10s after the token expires. At least 1m; 0: never. (Not a flag of \
             the Go proxy-server.)",
        );
        set.add(
            "agent-identity-binding",
            &mut self.agent_identity_binding,
            "Check that an agent's id and identifiers follow from its certificate or token: off, log (log and count \
             other claims) or enforce (refuse the agent). (Not a flag of the Go proxy-server.)",
        );
        set.add(
            "agent-identity-source-address",
            &mut self.agent_identity_source_address,
            "With --agent-identity-binding: an agent may claim the source address of its connection. Use it only if \
             nothing between agents and this server translates addresses: not behind a NodePort, nor a load balancer \
             that hides them. (Not a flag of the Go proxy-server.)",
        );
        set.add(
            "agent-allowed-names",
            &mut self.agent_allowed_names,
            "Common names and alternative names of certificates that are admitted as agents. Empty: all certificates \
             signed by --cluster-ca-cert. (Not a flag of the Go proxy-server.)",
        );
        set.add(
            "default-route-allowed-names",
            &mut self.default_route_allowed_names,
            "Names of agents that may announce default-route and cidr if --agent-identity-binding is enforce: names in \
             their certificate, or their token's user or node. (Not a flag of the Go proxy-server.)",
        );
    }

    /// `by_certificate`: agents authenticate by certificate. Either all three token flags are set or none; certificates and
    /// tokens exclude each other.
    pub(super) fn check(self, by_certificate: bool, warnings: &mut Vec<String>) -> Result<Access, FlagError> {
        let binding = match self.agent_identity_binding.as_str() {
            "off" => IdentityBinding::Off,
            "log" => IdentityBinding::Log,
            "enforce" => IdentityBinding::Enforce,
            other => {
                let want = "it must be off, log or enforce";
                return Err(FlagError::value("agent-identity-binding", format_args!("{other:?}"), want));
            }
        };
        let flags = [
            ("agent-namespace", self.agent_namespace),
            ("agent-service-account", self.agent_service_account),
            ("authentication-audience", self.authentication_audience),
        ];
        let given = flags.iter().find(|(_, text)| !text.is_empty()).map(|(flag, _)| *flag);
        let agent_names = self.agent_allowed_names.items;
        if !agent_names.is_empty() && !by_certificate {
            let fix = "names are those of certificates";
            return Err(FlagError::Needs { flag: "agent-allowed-names", other: "cluster-ca-cert", fix });
        }
        if given.is_none() && !by_certificate {
            let fix = "give the authorities of agents' certificates, or authenticate agents by token";
            if self.require_agent_auth {
                return Err(FlagError::Needs { flag: "require-agent-auth", other: "cluster-ca-cert", fix });
            }
            if binding == IdentityBinding::Enforce {
                return Err(FlagError::Needs {
                    flag: "agent-identity-binding",
                    other: "cluster-ca-cert",
                    fix,
                });
            }
        }
        let default_route_names = self.default_route_allowed_names.items;
        if !default_route_names.is_empty() && binding != IdentityBinding::Enforce {
            warnings.push(
                "--default-route-allowed-names refuses nobody without --agent-identity-binding=enforce"
                    .to_owned(),
            );
        }
        let source_address = self.agent_identity_source_address;
        let judged = binding != IdentityBinding::Off && (given.is_some() || by_certificate);
        if source_address && !judged {
            let why = "agents are not authenticated, or --agent-identity-binding is off";
            warnings.push(format!("--agent-identity-source-address has no effect: {why}"));
        }
        let review_every = review_every(self.token_review_interval, given.is_some(), warnings)?;
        let token_auth = match given {
            None => None,
            Some(given) => Some(token_auth(flags, given, by_certificate, review_every)?),
        };
        Ok(Access { token_auth, binding, source_address, agent_names, default_route_names })
    }
}

fn token_auth(
    flags: [(&'static str, String); 3],
    given: &'static str,
    by_certificate: bool,
    review_every: Option<Duration>,
) -> Result<TokenAuth, FlagError> {
    if by_certificate {
        let fix = "agents show either a certificate or a token, drop one";
        return Err(FlagError::Conflict { flag: "cluster-ca-cert", with: given, fix });
    }
    if let Some((missing, _)) = flags.iter().find(|(_, text)| text.is_empty()) {
        let fix = "token authentication takes all of --agent-namespace, --agent-service-account and \
                   --authentication-audience";
        return Err(FlagError::Needs { flag: given, other: missing, fix });
    }
    let [(_, namespace), (_, service_account), (_, audience)] = flags;
    Ok(TokenAuth { namespace, service_account, audience, review_every })
}

fn review_every(
    given: GoDuration,
    tokens: bool,
    warnings: &mut Vec<String>,
) -> Result<Option<Duration>, FlagError> {
    if given < GoDuration::ZERO {
        return Err(FlagError::value("token-review-interval", given, "it must not be below 0"));
    }
    if given == GoDuration::ZERO {
        return Ok(None);
    }
    if !tokens {
        warnings.push("--token-review-interval has no effect: agents do not show tokens".to_owned());
    }
    if given.or_zero() < LEAST_REVIEW {
        warnings.push(format!("--token-review-interval={given}: it counts as 1m"));
    }
    Ok(Some(given.or_zero().max(LEAST_REVIEW)))
}
