//! The flag values that are logged at the start.

/// The flags that the Go proxy-server logs, in its order and formats (v0.36.0, `options.go`).
const GO: [(&str, &str); 39] = [
    ("server-cert", "ServerCert set to %q."),
    ("server-key", "ServerKey set to %q."),
    ("server-ca-cert", "ServerCACert set to %q."),
    ("cluster-cert", "ClusterCert set to %q."),
    ("cluster-key", "ClusterKey set to %q."),
    ("cluster-ca-cert", "ClusterCACert set to %q."),
    ("mode", "Mode set to %q."),
    ("uds-name", "UDSName set to %q."),
    ("delete-existing-uds-file", "DeleteUDSFile set to %v."),
    ("server-port", "Server port set to %d."),
    ("server-bind-address", "Server bind address set to %q."),
    ("agent-port", "Agent port set to %d."),
    ("agent-bind-address", "Agent bind address set to %q."),
    ("admin-port", "Admin port set to %d."),
    ("admin-bind-address", "Admin bind address set to %q."),
    ("health-port", "Health port set to %d."),
    ("health-bind-address", "Health bind address set to %q."),
    ("keepalive-time", "Keepalive time set to %v."),
    ("frontend-keepalive-time", "Frontend keepalive time set to %v."),
    ("enable-profiling", "EnableProfiling set to %v."),
    ("enable-contention-profiling", "EnableContentionProfiling set to %v."),
    ("server-id", "ServerID set to %s."),
    ("server-count", "ServerCount set to %d."),
    ("agent-namespace", "AgentNamespace set to %q."),
    ("agent-service-account", "AgentServiceAccount set to %q."),
    ("authentication-audience", "AuthenticationAudience set to %q."),
    ("kubeconfig", "KubeconfigPath set to %q."),
    ("kubeconfig-qps", "KubeconfigQPS set to %f."),
    ("kubeconfig-burst", "KubeconfigBurst set to %d."),
    ("kube-api-content-type", "APIContentType set to %v."),
    ("proxy-strategies", "ProxyStrategies set to %q."),
    ("enable-lease-controller", "EnableLeaseController set to %v."),
    ("lease-namespace", "LeaseNamespace set to %s."),
    ("lease-label", "LeaseLabel set to %s."),
    ("cipher-suites", "CipherSuites set to [%q]."),
    ("tls-min-version", "TLSMinVersion set to %q."),
    ("xfr-channel-size", "XfrChannelSize set to %d."),
    ("graceful-shutdown-timeout", "GracefulShutdownTimeout set to %v."),
    ("backend-dial-timeout", "BackendDialTimeout set to %v."),
];

/// One line for each flag; `server-id` shows the id in effect.
pub(super) fn lines(mut values: Vec<(&'static str, String)>, server_id: &str) -> Vec<String> {
    for (_, value) in values.iter_mut().filter(|(name, _)| *name == "server-id") {
        server_id.clone_into(value);
    }
    flags::announce(&GO, &values)
}
