//! The flag values that are logged at the start.

/// The flags that the Go proxy-agent logs, in its order and formats (v0.36.0, `options.go`).
const GO: [(&str, &str); 27] = [
    ("agent-cert", "AgentCert set to %q."),
    ("agent-key", "AgentKey set to %q."),
    ("ca-cert", "CACert set to %q."),
    ("proxy-server-host", "ProxyServerHost set to %q."),
    ("proxy-server-port", "ProxyServerPort set to %d."),
    ("alpn-proto", "ALPNProtos set to [%s]."),
    ("health-server-host", "HealthServerHost set to %s"),
    ("health-server-port", "HealthServerPort set to %d."),
    ("admin-bind-address", "Admin bind address set to %q."),
    ("admin-server-port", "AdminServerPort set to %d."),
    ("enable-profiling", "EnableProfiling set to %v."),
    ("enable-contention-profiling", "EnableContentionProfiling set to %v."),
    ("agent-id", "AgentID set to %s."),
    ("sync-interval", "SyncInterval set to %v."),
    ("probe-interval", "ProbeInterval set to %v."),
    ("sync-interval-cap", "SyncIntervalCap set to %v."),
    ("keepalive-time", "Keepalive time set to %v."),
    ("service-account-token-path", "ServiceAccountTokenPath set to %q."),
    ("agent-identifiers", "AgentIdentifiers set to %s."),
    ("warn-on-channel-limit", "WarnOnChannelLimit set to %t."),
    ("sync-forever", "SyncForever set to %v."),
    ("count-server-leases", "CountServerLeases set to %v."),
    ("lease-namespace", "LeaseNamespace set to %s."),
    ("lease-label-selector", "LeaseLabel set to %s."),
    ("server-count-source", "ServerCountSource set to %s."),
    ("xfr-channel-size", "ChannelSize set to %d."),
    ("kube-api-content-type", "APIContentType set to %v."),
];

/// One line for each flag; `agent-id` shows the id in effect.
pub(super) fn lines(mut values: Vec<(&'static str, String)>, agent_id: &str) -> Vec<String> {
    for (_, value) in values.iter_mut().filter(|(name, _)| *name == "agent-id") {
        agent_id.clone_into(value);
    }
    for (_, value) in values.iter_mut().filter(|(name, _)| *name == "agent-identifiers") {
        *value = value.replace('&', ",");
    }
    flags::announce(&GO, &values)
}
