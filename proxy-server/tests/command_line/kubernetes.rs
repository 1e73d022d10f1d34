//! Flags of the leases and of the Kubernetes API client.

use super::table::Entry;
use proxy_server::args::Config;

use super::flag;

pub(crate) fn kubernetes() -> Vec<Entry<Config>> {
    fn labels(config: &Config) -> String {
        format!("{:?}", config.kube.lease_label)
    }
    vec![
        flag("enable-lease-controller", |c| c.kube.enable_lease_controller.to_string())
            .default("false")
            .takes(&["--enable-lease-controller=false"], "false")
            .takes(&["--enable-lease-controller"], "true"),
        flag("lease-namespace", |c| c.kube.lease_namespace.clone())
            .default("kube-system")
            .takes(&["--lease-namespace=x"], "x"),
        flag("advertise-address", |c| format!("{:?}", c.kube.advertise_address))
            .default("None")
            .accepts_but_go_rejects(&["--advertise-address=[::1]:8091"], "Some(\"[::1]:8091\")")
            .refuses(&["--advertise-address=a"], "--advertise-address=\"a\": it must be HOST:PORT")
            .refuses(&["--advertise-address=:8091"], "--advertise-address=\":8091\": it must be HOST:PORT")
            .refuses(
                &["--advertise-address=$(POD_IP):8132"],
                "--advertise-address=\"$(POD_IP):8132\": it must be HOST:PORT",
            ),
        flag("lease-label", labels)
            .default("{\"k8s-app\": \"konnectivity-server\"}")
            .takes(&["--lease-label= a = b ,c="], "{\"a\": \"b\", \"c\": \"\"}")
            .takes(&["--lease-label==x"], "{\"\": \"x\"}")
            .refuses(&["--lease-label="], "--lease-label=\"\": it must be KEY=VALUE")
            .refuses(&["--lease-label=a"], "--lease-label=\"a\": it must be KEY=VALUE")
            .refuses(&["--lease-label=a=b=c"], "--lease-label=\"a=b=c\": it must be KEY=VALUE")
            .refuses(&["--lease-label=a=b,"], "--lease-label=\"a=b,\": it must be KEY=VALUE"),
        flag("kubeconfig", |c| c.kube.kubeconfig.is_some().to_string())
            .default("false")
            .takes(&["--kubeconfig="], "false")
            .takes(&["--kubeconfig={file}"], "true")
            .refuses(&["--kubeconfig={none}"], "--kubeconfig: "),
        flag("kubeconfig-qps", |c| c.kube.kubeconfig_qps.to_string())
            .default("0")
            .takes(&["--kubeconfig-qps=12.5"], "12.5")
            .takes(&["--kubeconfig-qps", "1e2"], "100")
            .refuses(
                &["--kubeconfig-qps=x"],
                "invalid argument \"x\" for \"--kubeconfig-qps\" flag: it must be a number",
            )
            .refuses(
                &["--kubeconfig-qps=1e39"],
                "invalid argument \"1e39\" for \"--kubeconfig-qps\" flag: it must be a number",
            )
            .rejects_but_go_accepts(
                &["--kubeconfig-qps=NaN"],
                "invalid argument \"NaN\" for \"--kubeconfig-qps\" flag: it must be a number",
            )
            .rejects_but_go_accepts(
                &["--kubeconfig-qps=Inf"],
                "invalid argument \"Inf\" for \"--kubeconfig-qps\" flag: it must be a number",
            ),
        flag("kubeconfig-burst", |c| c.kube.kubeconfig_burst.to_string())
            .default("0")
            .takes(&["--kubeconfig-burst=7"], "7")
            .refuses(&["--kubeconfig-burst=1.5"], "invalid argument \"1.5\" for \"--kubeconfig-burst\" flag"),
        flag("kube-api-content-type", |c| c.kube.kube_api_content_type.clone())
            .default("application/vnd.kubernetes.protobuf")
            .takes(&["--kube-api-content-type=application/json"], "application/json"),
    ]
}
