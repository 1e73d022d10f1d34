//! The parts of the boot that concern agent identity and the Kubernetes API.

use anyhow::{Context, Result, anyhow};
use cluster::{Client, Clock};

use crate::agent_stream::AgentGate;
use crate::args::Config;
use crate::auth::{AgentAuth, AllowedNames, Binding, Reviewer, api_review};
use crate::leases::{self, LeaseSettings};
use crate::metrics::{AgentAuthMode, Metrics};

/// The Kubernetes API client, if tokens or leases need one.
pub(super) fn client(config: &Config) -> Result<Option<Client>> {
    let kube = &config.kube;
    if config.token_auth.is_none() && !kube.enable_lease_controller {
        return Ok(None);
    }
    let api = cluster::Config::load(kube.kubeconfig.as_deref());
    let api = api.map_err(|why| anyhow!("--kubeconfig: {why}"))?;
    tracing::info!(%api, qps = kube.kubeconfig_qps, burst = kube.kubeconfig_burst, "Kubernetes API");
    Ok(Some(Client::new(api, "proxy-server", kube.kubeconfig_qps, kube.kubeconfig_burst)))
}

/// The credentials that agents must present, and the claims that they may make. Logs a warning if agents are not authenticated.
pub(super) fn agent_gate(
    config: &Config,
    kubernetes: Option<&Client>,
    metrics: &Metrics,
) -> Result<AgentGate> {
    let (mode, auth) = match (&config.agent_tls.client_ca, &config.token_auth) {
        (Some(_), _) => {
            let names = AllowedNames::new(config.access.agent_allowed_names.clone());
            (AgentAuthMode::Certificate, AgentAuth::Certificate(names))
        }
        (None, Some(tokens)) => {
            let client =
                kubernetes.context("--agent-namespace: tokens cannot be reviewed without a client")?;
            let review = api_review(client.clone(), tokens.audience.clone());
            let reviewer = Reviewer::new(review, tokens.clone(), Clock::system(), metrics.clone());
            (AgentAuthMode::Token, AgentAuth::Token(reviewer))
        }
        (None, None) => {
            tracing::warn!(
                "Agents are not authenticated: whoever reaches the agent port receives the cluster's traffic. \
                 Set --cluster-ca-cert, or --agent-namespace, --agent-service-account and --authentication-audience"
            );
            (AgentAuthMode::None, AgentAuth::Anonymous)
        }
    };
    metrics.agent_auth_mode.get_or_create(&mode).set(1);
    let access = &config.access;
    let binding = Binding {
        wide: access.default_route_allowed_names.clone(),
        source_address: access.agent_identity_source_address,
    };
    Ok(AgentGate::new(auth, access.agent_identity_binding, binding))
}

/// The settings of the server's lease, if the lease controller is enabled.
pub(super) fn lease_settings(config: &Config) -> Option<LeaseSettings> {
    let kube = &config.kube;
    kube.enable_lease_controller.then(|| LeaseSettings {
        namespace: kube.lease_namespace.clone(),
        labels: kube.lease_label.clone(),
        server_id: config.replica.server_id.clone(),
        advertise_address: kube.advertise_address.clone(),
        every: leases::PERIOD,
    })
}
