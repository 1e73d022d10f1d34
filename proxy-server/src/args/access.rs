//! Checks of the flags for the authentication of agents together.

use std::time::Duration;

use flags::{FlagError, GoDuration};

use super::TokenAuth;
use super::table::AccessFlags;
use crate::agent_stream::IdentityBinding;

/// Shorter intervals would load the API server without effect: an accepted token is cached for a minute.
const MIN_REVIEW_INTERVAL: Duration = Duration::from_secs(60);

/// How tokens authenticate agents, if they do. `by_certificate`: agents authenticate by certificate. Either all three token
/// flags are set or none; certificates and tokens exclude each other.
pub(super) fn token_auth(
    flags: &AccessFlags,
    by_certificate: bool,
    warnings: &mut Vec<String>,
) -> Result<Option<TokenAuth>, FlagError> {
    let texts = [
        ("agent-namespace", &flags.agent_namespace),
        ("agent-service-account", &flags.agent_service_account),
        ("authentication-audience", &flags.authentication_audience),
    ];
    let given = texts.iter().find(|(_, text)| !text.is_empty()).map(|(flag, _)| *flag);
    let authenticated = by_certificate || given.is_some();
    certificates_that_are_needed(flags, by_certificate, authenticated)?;
    warn(flags, warnings);
    let Some(given) = given else { return Ok(None) };
    if by_certificate {
        let fix = "agents show either a certificate or a token, drop one";
        return Err(FlagError::conflict("cluster-ca-cert", given, fix));
    }
    if let Some((missing, _)) = texts.iter().find(|(_, text)| text.is_empty()) {
        let fix = "token authentication takes all of --agent-namespace, --agent-service-account and \
                   --authentication-audience";
        return Err(FlagError::needs(given, missing, fix));
    }
    let [namespace, service_account, audience] = texts.map(|(_, text)| text.clone());
    let review_every = flags.token_review_interval.map(|interval| interval.max(MIN_REVIEW_INTERVAL));
    Ok(Some(TokenAuth { namespace, service_account, audience, review_every }))
}

/// Flags that need agents' certificates, or agents that authenticate in one of the two ways.
fn certificates_that_are_needed(
    flags: &AccessFlags,
    by_certificate: bool,
    authenticated: bool,
) -> Result<(), FlagError> {
    let authenticate = "give the authorities of agents' certificates, or authenticate agents by token";
    let enforced = flags.agent_identity_binding == IdentityBinding::Enforce;
    let lacking = [
        (
            "agent-allowed-names",
            !flags.agent_allowed_names.is_empty() && !by_certificate,
            "names are those of certificates",
        ),
        ("require-agent-auth", flags.require_agent_auth && !authenticated, authenticate),
        ("agent-identity-binding", enforced && !authenticated, authenticate),
    ];
    match lacking.into_iter().find(|(_, lacking, _)| *lacking) {
        Some((flag, _, fix)) => Err(FlagError::needs(flag, "cluster-ca-cert", fix)),
        None => Ok(()),
    }
}

fn warn(flags: &AccessFlags, warnings: &mut Vec<String>) {
    let binding = flags.agent_identity_binding;
    if !flags.default_route_allowed_names.is_empty() && binding != IdentityBinding::Enforce {
        let without = "refuses nobody without --agent-identity-binding=enforce";
        warnings.push(format!("--default-route-allowed-names {without}"));
    }
    if let Some(interval) = flags.token_review_interval
        && interval < MIN_REVIEW_INTERVAL
    {
        warnings.push(format!("--token-review-interval={}: it counts as 1m", GoDuration::from(interval)));
    }
}
