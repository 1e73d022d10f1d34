//! The parts of the boot that concern agent identity and the Kubernetes API.

use anyhow::{Context, Result};
use cluster::{Client, Clock};
use serve::http::OpsRuntime;

use crate::args::Config;
use crate::auth::{AgentAuth, AllowedNames, ApiReview, Binding, Expected, Reviewer};
use crate::leases::{LeaseController, LeaseSettings};
use crate::link::AgentGate;
use crate::metrics::{AgentAuthMode, Metrics};

/// The Kubernetes API client, if tokens or leases need one.
pub(super) fn client(config: &Config) -> Result<Option<Client>> {
    if config.token_auth.is_none() && !config.leases.enabled {
        return Ok(None);
    }
    let api = cluster::Config::load(config.kube.kubeconfig.as_deref()).context("--kubeconfig")?;
    for warning in &api.warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!(
        api = %api,
        qps = config.kube.qps,
        burst = config.kube.burst,
        asked_for = config.kube.content_type,
        "Requests to the Kubernetes API are JSON"
    );
    Ok(Some(Client::new(api, "proxy-server", config.kube.qps, config.kube.burst)))
}

/// Logs a warning if agents are not authenticated.
pub(super) fn announce_agent_auth(config: &Config, metrics: &Metrics) {
    let mode = match (&config.agent_listener.client_ca, &config.token_auth) {
        (Some(_), _) => AgentAuthMode::Certificate,
        (None, Some(_)) => AgentAuthMode::Token,
        (None, None) => AgentAuthMode::None,
    };
    metrics.set_agent_auth_mode(mode);
    if mode == AgentAuthMode::None {
        tracing::warn!(
            "Agents are not authenticated: whoever reaches the agent port receives the cluster's traffic. \
             Set --cluster-ca-cert, or --agent-namespace, --agent-service-account and --authentication-audience"
        );
    }
}

/// The credentials that agents must present, and the claims that they may make.
pub(super) fn agent_gate(
    config: &Config,
    kubernetes: Option<&Client>,
    metrics: &Metrics,
) -> Result<AgentGate> {
    let auth = match (&config.agent_listener.client_ca, &config.token_auth, kubernetes) {
        (Some(_), _, _) => AgentAuth::certificates(AllowedNames::new(config.agent_names.clone())),
        (None, Some(tokens), Some(client)) => {
            let expected = Expected {
                namespace: tokens.namespace.clone(),
                service_account: tokens.service_account.clone(),
                audience: tokens.audience.clone(),
            };
            let review = ApiReview::new(client.clone(), tokens.audience.clone());
            let (clock, every) = (Clock::system(), tokens.review_every);
            AgentAuth::tokens(Reviewer::new(review, expected, clock, metrics.clone(), every))
        }
        (None, Some(_), None) => {
            anyhow::bail!("--agent-namespace: tokens cannot be reviewed without a client")
        }
        (None, None, _) => AgentAuth::anonymous(),
    };
    let binding =
        Binding { wide: config.default_route_names.clone(), source_address: config.trust_source_address };
    Ok(AgentGate::new(auth, config.identity_binding, binding))
}

/// Starts the lease controller if it is enabled; it runs on the runtime of the health and admin ports.
pub(super) fn leases(
    config: &Config,
    client: &Client,
    metrics: &Metrics,
    ops: &OpsRuntime,
) -> Option<LeaseController> {
    if !config.leases.enabled {
        return None;
    }
    let (namespace, labels) = (config.leases.namespace.clone(), config.leases.labels.clone());
    let settings = LeaseSettings::new(namespace, labels, config.server_id.clone());
    Some(LeaseController::start(ops.handle(), client, settings, metrics.clone()))
}
