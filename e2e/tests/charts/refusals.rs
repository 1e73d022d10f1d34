//! Values that cannot work are refused with one line that names the value and the remedy.

use anyhow::{Context, Result, bail, ensure};

use crate::helm::{Chart, text};

/// Case, settings, and a part of the error.
type Refusal = (&'static str, &'static [&'static str], &'static str);

const AGENT: &[Refusal] = &[
    // Refused by the schema.
    ("token-deployment", &["image.registri=x"], "at '/image': additional properties 'registri' not allowed"),
    ("token-deployment", &["kind=StatefulSet"], "at '/kind': value must be one of 'Deployment', 'DaemonSet'"),
    (
        "token-deployment",
        &["proxyServer.port=70000"],
        "at '/proxyServer/port': maximum: got 70,000, want 65,535",
    ),
    ("token-deployment", &["extraArgs.--v=2"], "'--v' does not match pattern"),
    (
        "token-deployment",
        &["agentIdentifiers=uid=3"],
        "at '/agentIdentifiers': 'uid=3' does not match pattern",
    ),
    ("token-deployment", &["agentIdentifiers=host=a%zz"], "at '/agentIdentifiers'"),
    ("token-deployment", &["destinations.deny={10.0.0.0/99}"], "at '/destinations/deny/0'"),
    ("token-deployment", &["destinations.allow={a:70000}"], "at '/destinations/allow/0'"),
    ("token-deployment", &["proxyServer.host=a:99999"], "at '/proxyServer/host'"),
    ("token-deployment", &["proxyServer.host=a:"], "at '/proxyServer/host'"),
    ("token-deployment", &["proxyServer.host=a\\,"], "at '/proxyServer/host'"),
    ("leases", &["serverCount.leaseNamespace="], "at '/serverCount/leaseNamespace'"),
    ("leases", &["serverCount.labelSelector=a in (b"], "at '/serverCount/labelSelector'"),
    ("leases", &["serverCount.labelSelector=a\\,"], "at '/serverCount/labelSelector'"),
    ("token-deployment", &["sync.interval=5"], "at '/sync/interval': got number, want string"),
    ("token-deployment", &["sync.interval=5 seconds"], "at '/sync/interval'"),
    ("token-deployment", &["image.digest=sha256:12"], "at '/image/digest'"),
    ("token-deployment", &["auth.token.expirationSeconds=60"], "minimum: got 60, want 600"),
    ("token-deployment", &["replicaCount=-1"], "at '/replicaCount': minimum: got -1, want 0"),
    (
        "token-deployment",
        &[
            "topologySpreadConstraints[0].topologyKey=a,topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        ],
        "missing property 'maxSkew'",
    ),
    ("token-deployment", &["memoryLimit=1G"], "at '/memoryLimit': '1G' does not match pattern"),
    ("token-deployment", &["memoryLimit=15Mi"], "at '/memoryLimit'"),
    // Refused by the templates.
    ("token-deployment", &["sync.interval=20s"], "sync.interval is 20s, above sync.intervalCap (10s)"),
    ("token-deployment", &["extraVolumes[0].name=konnectivity"], "extraVolumes has a volume konnectivity"),
    ("everything", &["auth.mtls.certManager.renewBefore=2160h"], "renewBefore is 2160h, not below duration"),
    ("everything", &["prometheus.podMonitor.interval=9s"], "scrapeTimeout is 10s, above interval (9s)"),
    ("token-deployment", &["image.registry="], "image.registry is empty"),
    ("token-deployment", &["proxyServer.host="], "proxyServer.host is empty"),
    ("token-deployment", &["podDisruptionBudget.minAvailable=2"], "could be drained"),
    ("token-deployment", &["podDisruptionBudget.minAvailable=51%"], "could be drained"),
    ("token-deployment", &["podDisruptionBudget.maxUnavailable=0"], "maxUnavailable is 0: no node"),
    ("token-deployment", &["auth.mode=mtls"], "there is no client certificate: set auth.mtls.existingSecret"),
    ("token-deployment", &["auth.mtls.certManager.enabled=true"], "that auth.mode token does not use"),
    ("everything", &["auth.mtls.certManager.issuerRef.name="], "issuerRef.name is empty"),
    ("token-deployment", &["ca.configMap="], "the image has no system roots"),
    ("token-deployment", &["ports.health=8133"], "ports.health and ports.admin are both 8133"),
    (
        "token-deployment",
        &["bindAddresses.health=127.0.0.1"],
        "kubelet cannot probe a pod without hostNetwork",
    ),
    ("hostnetwork", &["prometheus.podMonitor.enabled=true"], "where Prometheus cannot scrape: leave"),
    ("hostnetwork", &["prometheus.rules.enabled=true"], "the alert on missing targets would fire for ever"),
    ("token-deployment", &["extraArgs.health-server-port=1"], "set ports.health instead"),
    ("go-image", &["logging.format=json"], "a flag that Go's agent does not have"),
    ("go-image", &["destinations.deny={10.0.0.1}"], "so that nothing would be denied"),
    (
        "token-deployment",
        &["agentIdentifiers=host=$(NODE)"],
        "agentIdentifiers uses $(NODE), which nothing defines",
    ),
    (
        "token-deployment",
        &["proxyServer.strategies={destHost,default}"],
        "agentIdentifiers names no host, ipv4",
    ),
    (
        "token-deployment",
        &["proxyServer.strategies={defaultRoute}"],
        "agentIdentifiers has no default-route=true",
    ),
    (
        "token-deployment",
        &["drainTimeout=30s"],
        "terminationGracePeriodSeconds is 30, not above drainTimeout (30s)",
    ),
    ("token-deployment", &["extraArgs.drain-timeout=60s"], "set drainTimeout instead"),
    (
        "hostnetwork",
        &["proxyServer.host=konnectivity-server.kube-system.svc"],
        "set dnsPolicy=ClusterFirstWithHostNet",
    ),
    (
        "hostnetwork",
        &["proxyServer.host=konnectivity-server.kube-system.svc:8132"],
        "set dnsPolicy=ClusterFirstWithHostNet",
    ),
    (
        "hostnetwork",
        &["proxyServer.host=konnectivity-server.kube-system.svc\\,b.example.com"],
        "set dnsPolicy=ClusterFirstWithHostNet",
    ),
    ("token-deployment", &["rbac.serverUser="], "rbac.serverUser is empty"),
    ("go-image", &["proxyServer.host=lb.example.com:8132"], "write the port in proxyServer.port"),
    ("go-image", &["proxyServer.host=a\\,b"], "Go's agent takes one host without a port"),
    (
        "token-deployment",
        &["agentIdentifiers=ipv4=1.2.3"],
        "agentIdentifiers has ipv4=1.2.3, which can never",
    ),
    ("token-deployment", &["agentIdentifiers=ipv4=999.1.1.1"], "agentIdentifiers has ipv4=999.1.1.1"),
    ("token-deployment", &["agentIdentifiers=ipv6=1.2.3.4"], "agentIdentifiers has ipv6=1.2.3.4"),
    (
        "token-deployment",
        &["agentIdentifiers=host=a&cidr=10.0.0.0/40"],
        "agentIdentifiers has cidr=10.0.0.0/40",
    ),
    ("token-deployment", &["agentIdentifiers=default-route=yes"], "agentIdentifiers has default-route=yes"),
    ("go-image", &["agentIdentifiers=zone=a"], "a key that Go's agent refuses"),
    ("token-deployment", &["podLabels.k8s-app=x"], "podLabels.k8s-app is a label by which selectors find"),
    ("token-deployment", &["extraPodSpec.containers[0].name=x"], "'containers'"),
    ("token-deployment", &["image.registry=null"], "missing property 'registry'"),
    ("hostnetwork", &["networkPolicy.enabled=true"], "no policy holds on the host's network"),
    (
        "hostnetwork",
        &["updateStrategy.rollingUpdate.maxSurge=1"],
        "updateStrategy lets the DaemonSet surge on the host's network",
    ),
    (
        "token-deployment",
        &["hostNetwork=true", "updateStrategy.type=RollingUpdate"],
        "updateStrategy lets the Deployment surge on the host's network",
    ),
    (
        "everything",
        &["hostNetwork=true", "networkPolicy.enabled=false"],
        "set updateStrategy.rollingUpdate.maxSurge=0, or hostNetwork=false",
    ),
    ("token-deployment", &["podSecurityContext.runAsUser=0"], "which kubelet refuses"),
    ("token-deployment", &["securityContext.runAsUser=0"], "set podSecurityContext.runAsNonRoot=false"),
    (
        "mtls-daemonset",
        &["kind=Deployment", "proxyServer.strategies={destHost}"],
        "nodes without an agent would be out of reach, set kind=DaemonSet",
    ),
];

/// A socket below `/etc/kubernetes/konnectivity-server`, one byte too long.
const SOCKET_OF_108_BYTES: &str = "frontend.uds.socketName=\
    ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss";

const SERVER: &[Refusal] = &[
    ("deployment", &["podDisruptionBudget.minAvailable=3"], "could be drained"),
    ("deployment", &["podDisruptionBudget.maxUnavailable=0%"], "maxUnavailable is 0%: no node"),
    // Refused by the schema.
    ("deployment", &["agentListener.prt=1"], "at '/agentListener': additional properties 'prt' not allowed"),
    (
        "deployment",
        &["commonLabels.app\\.kubernetes\\.io/name=x"],
        "commonLabels.app.kubernetes.io/name is a label by which selectors find",
    ),
    ("deployment", &["service.extraSpec.type=NodePort"], "'type'"),
    ("uds-daemonset", &["frontend.uds.hostPath=/run/a #b"], "at '/frontend/uds/hostPath'"),
    ("static-pod", &["kubeconfig.hostPath=/run/a: b"], "at '/kubeconfig/hostPath'"),
    ("uds-nonroot", &["leases.label=a b=c"], "at '/leases/label'"),
    ("deployment", &["mode=socks"], "at '/mode': value must be one of 'grpc', 'http-connect'"),
    ("deployment", &["agentListener.port=443"], "at '/agentListener/port': minimum: got 443, want 1,024"),
    ("deployment", &["proxyStrategies={random}"], "at '/proxyStrategies/0'"),
    ("deployment", &["memoryLimit=2G"], "at '/memoryLimit': '2G' does not match pattern"),
    ("deployment", &["serverCount=many"], "at '/serverCount'"),
    ("deployment", &["tlsMinVersion=1.3"], "at '/tlsMinVersion'"),
    ("deployment", &["cipherSuites={TLS_FOO}"], "at '/cipherSuites/0'"),
    ("deployment", &["agentListener.externalHost=k:8132"], "at '/agentListener/externalHost'"),
    ("deployment", &["egressSelector.frontendHost=k:8090"], "at '/egressSelector/frontendHost'"),
    ("uds-daemonset", &["frontend.uds.hostPath="], "at '/frontend/uds/hostPath': '' does not match"),
    ("uds-daemonset", &["frontend.uds.hostPath=/"], "at '/frontend/uds/hostPath'"),
    ("uds-daemonset", &["egressSelector.apiserverSocketDirectory=/"], "at '/egressSelector/apiserver"),
    ("tcp-daemonset", &["egressSelector.apiserverCertificateDirectory="], "at '/egressSelector/apiserver"),
    // Refused by the templates.
    (
        "deployment",
        &[
            "topologySpreadConstraints[0].topologyKey=a,topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        ],
        "missing property 'maxSkew'",
    ),
    ("deployment", &["extraVolumes[0].name=konnectivity"], "extraVolumes has a volume konnectivity"),
    ("static-pod", &["extraVolumes[0].name=host-0,extraVolumes[0].emptyDir.medium="], "has a volume host-0"),
    (
        "everything",
        &["agentListener.tls.certManager.renewBefore=90m,agentListener.tls.certManager.duration=1h"],
        "agentListener.tls.certManager.renewBefore is 90m, not below duration (1h)",
    ),
    ("everything", &["prometheus.podMonitor.scrapeTimeout=1m"], "scrapeTimeout is 1m, above interval (30s)"),
    (
        "uds-daemonset",
        &["agentListener.tls.hostPath.cert=/etc/kubernetes/pki/apiserver.crt"],
        "/etc/kubernetes/pki would be mounted as a whole, with the keys of the cluster",
    ),
    (
        "uds-daemonset",
        &["agentListener.tls.hostPath.cert=/etc/kubernetes/pki/etcd/server.crt"],
        "/etc/kubernetes/pki/etcd would be mounted as a whole",
    ),
    (
        "uds-daemonset",
        &["frontend.uds.hostPath=/etc/kubernetes/"],
        "/etc/kubernetes would be mounted as a whole",
    ),
    ("deployment", &["image.registry="], "image.registry is empty"),
    ("deployment", &["frontend.type=uds"], "kube-apiserver cannot reach a socket in another pod"),
    ("deployment", &["mode=grpc"], "kube-apiserver speaks gRPC over a Unix socket only"),
    (
        "sidecar-tcp",
        &["egressSelector.apiserverClientSecret="],
        "name the Secret of kube-apiserver's client certificate",
    ),
    ("enforce", &["egressSelector.apiserverClientSecret="], "cannot resolve the frontend's Service"),
    ("tcp-daemonset", &["hostNetwork=false"], "cannot resolve the frontend's Service"),
    ("sidecar-tcp", &["service.selector=null"], "no pod would be scraped"),
    ("uds-daemonset", &["serverCount=auto"], "serverCount is auto, which a DaemonSet cannot tell"),
    ("deployment", &["serverCount=2"], "serverCount is 2 but replicaCount is 3"),
    ("go-image", &["logging.format=json"], "a flag that Go's server does not have"),
    (
        "go-image",
        &["frontend.additional[0].mode=grpc", "frontend.additional[0].type=tcp"],
        "frontend.additional needs a flag that Go's server does not have",
    ),
    ("two-frontends", &["frontend.additional[0].type=udp"], "at '/frontend/additional/0/type'"),
    ("two-frontends", &["frontend.additional[0].type=uds"], "missing property 'socketName'"),
    ("two-frontends", &["mode=http-connect", "frontend.type=tcp"], "frontend.additional repeats an address"),
    ("two-frontends", &["frontend.tcp.clientCA.existingSecret="], "whoever reaches the port could dial"),
    ("two-frontends", &["extraArgs.frontend=x"], "set frontend.additional instead"),
    ("go-image", &["agentAuth.allowedNames={a}"], "so that everybody would come in"),
    ("uds-daemonset", &["agentAuth.allowedNames={a}"], "names of certificates, but agentAuth.mode is token"),
    ("deployment", &["agentListener.tls.existingSecret="], "agentListener.tls needs exactly one of"),
    ("deployment", &["agentListener.tls.certManager.enabled=true"], "agentListener.tls needs exactly one of"),
    (
        "uds-daemonset",
        &["agentListener.tls.hostPath.key="],
        "agentListener.tls.hostPath needs both cert and key",
    ),
    (
        "everything",
        &["frontend.tcp.tls.certManager.issuerRef.name="],
        "frontend.tcp.tls.certManager.issuerRef.name",
    ),
    ("deployment", &["agentListener.clientCA.hostPath=/ca.crt"], "agentListener.clientCA takes one of"),
    ("deployment", &["agentListener.clientCA.configMap="], "anybody could be an agent"),
    ("deployment", &["agentAuth.mode=token"], "agents show either a certificate or a token"),
    ("deployment", &["frontend.tcp.clientCA.existingSecret="], "whoever reaches the port could dial"),
    (
        "uds-nonroot",
        &["hostPathsPrepared=false"],
        "prepare them for that user and set hostPathsPrepared=true",
    ),
    ("uds-daemonset", &["podSecurityContext.runAsNonRoot=true"], "which kubelet refuses"),
    ("go-image", &["agentAuth.identityBinding=enforce"], "so that agents could claim anything"),
    (
        "enforce",
        &["agentAuth.defaultRouteAllowedNames=null"],
        "system:serviceaccount:kube-system:konnectivity-agent",
    ),
    ("enforce", &["agentAuth.identityBinding=log"], "refuses nobody while agentAuth.identityBinding is log"),
    (
        "deployment",
        &["agentAuth.identityBinding=enforce", "agentAuth.defaultRouteAllowedNames={a}"],
        "the certificate that agents share names no node",
    ),
    ("enforce", &["service.externalTrafficPolicy="], "nodes translate addresses"),
    (
        "static-pod",
        &[
            "agentListener.tls.existingSecret=pair",
            "agentListener.tls.hostPath.cert=",
            "agentListener.tls.hostPath.key=",
        ],
        "refers to the Secret or ConfigMap pair, which a static pod cannot mount",
    ),
    ("static-pod", &["imagePullSecrets[0].name=registry"], "give kubelet the credentials of the registry"),
    (
        "static-pod",
        &["extraVolumes[0].name=a", "extraVolumes[0].configMap.name=a"],
        "has configMap in extraVolumes",
    ),
    ("static-pod", &["extraVolumes[0].secret.secretName=a"], "has secret in extraVolumes"),
    (
        "static-pod",
        &["extraVolumes[0].name=a", "extraVolumes[0].projected.sources[0].serviceAccountToken.path=a"],
        "has serviceAccountToken in extraVolumes",
    ),
    (
        "static-pod",
        &["extraContainerSpec.envFrom[0].configMapRef.name=a"],
        "has envFrom in extraContainerSpec",
    ),
    (
        "static-pod",
        &["extraEnv[0].name=A", "extraEnv[0].valueFrom.secretKeyRef.name=a"],
        "has secretKeyRef in extraEnv",
    ),
    ("static-pod", &["kubeconfig.hostPath="], "kind StaticPodManifest has no service account"),
    ("sidecar", &["kubeconfig.existingSecret="], "kind Sidecar runs in kube-apiserver's pod"),
    ("sidecar", &["kubeconfig.hostPath=/x", "hostPathsPrepared=true"], "kubeconfig takes one of"),
    ("deployment", &["frontend.tcp.port=8132"], "agentListener.port and frontend.tcp.port are both 8132"),
    (
        "deployment",
        &["bindAddresses.health=localhost"],
        "kubelet cannot probe a pod without the host's network",
    ),
    ("static-pod", &["prometheus.podMonitor.enabled=true"], "where Prometheus cannot scrape: leave"),
    ("static-pod", &["prometheus.rules.enabled=true"], "the alert on missing targets would fire for ever"),
    ("deployment", &["extraArgs.server-count=3"], "set serverCount instead"),
    (
        "deployment",
        &["service.type=ClusterIP"],
        "service.nodePort needs service.type NodePort or LoadBalancer",
    ),
    (
        "deployment",
        &["--kube-version=1.35.0", "fullnameOverride=1a"],
        "before Kubernetes 1.36 names of Services begin with a letter",
    ),
    ("deployment", &["service.loadBalancerClass=x"], "need service.type LoadBalancer"),
    ("uds-daemonset", &["service.externalTrafficPolicy=Local"], "externalTrafficPolicy needs"),
    ("deployment", &["agentListener.externalPort=8132"], "is 8132, but the Service's nodePort is 30132"),
    ("deployment", &["updateStrategy.type=RollingUpdate"], "updateStrategy lets the Deployment surge"),
    (
        "deployment",
        &["updateStrategy.rollingUpdate.maxSurge=50%"],
        "updateStrategy lets the Deployment surge",
    ),
    (
        "uds-daemonset",
        &["updateStrategy.rollingUpdate.maxSurge=1", "syncForever=true"],
        "updateStrategy lets the DaemonSet surge on the host's network",
    ),
    (
        "uds-daemonset",
        &["updateStrategy.rollingUpdate.maxSurge=1", "hostNetwork=false"],
        "updateStrategy lets the DaemonSet surge, but agents",
    ),
    ("tcp-daemonset", &["networkPolicy.enabled=true"], "no policy holds on the host's network"),
    (
        "uds-daemonset",
        &["frontend.uds.hostPath=/etc/kubernetes/konnectivity"],
        "frontend.uds.hostPath is /etc/kubernetes/konnectivity, where kube-apiserver mounts",
    ),
    ("sidecar", &["frontend.uds.hostPath=/etc/kubernetes/konnectivity/"], "frontend.uds.hostPath is"),
    (
        "uds-daemonset",
        &["egressSelector.apiserverSocketDirectory=/etc/kubernetes/konnectivity/"],
        "egressSelector.apiserverSocketDirectory is /etc/kubernetes/konnectivity, where kube-apiserver mounts",
    ),
    (
        "tcp-daemonset",
        &["egressSelector.apiserverCertificateDirectory=/etc/kubernetes/konnectivity/"],
        "egressSelector.apiserverCertificateDirectory is /etc/kubernetes/konnectivity/, where kube-apiserver",
    ),
    (
        "uds-daemonset",
        &["frontend.uds.hostPath=/etc/kubernetes/konnectivity-tls/"],
        "give the socket a directory of its own",
    ),
    (
        "static-pod",
        &[
            "agentAuth.mode=mtls",
            "agentListener.clientCA.hostPath=/run/konnectivity/ca.crt",
            "frontend.uds.hostPath=/run/konnectivity",
        ],
        "mounted already for the files of agentListener.tls.hostPath or agentListener.clientCA.hostPath",
    ),
    ("uds-daemonset", &[SOCKET_OF_108_BYTES], "the path of a Unix socket may have at most 107"),
    ("sidecar", &["networkPolicy.enabled=true"], "networkPolicy.enabled with kind Sidecar"),
    ("static-pod", &["networkPolicy.enabled=true"], "networkPolicy.enabled with kind StaticPodManifest"),
    (
        "everything",
        &["--kube-version=1.29.0"],
        "lifecycle to {preStop: {exec: {command: [/konnectivity-sleep, \"10\"]}}}",
    ),
    (
        "deployment",
        &["extraContainerSpec.lifecycle.preStop.sleep.seconds=5"],
        "set preStopSleepSeconds=0, and count your hook into terminationGracePeriodSeconds",
    ),
    ("deployment", &["gracefulShutdownTimeout="], "gracefulShutdownTimeout is empty"),
    ("deployment", &["gracefulShutdownTimeout=30s"], "kubelet would kill the server before"),
    (
        "deployment",
        &["gracefulShutdownTimeout=25s"],
        "not above preStopSleepSeconds (5) and gracefulShutdownTimeout",
    ),
];

fn refused(chart: Chart, table: &[Refusal]) -> Result<()> {
    for (case, sets, expected) in table {
        let values = chart.case(case);
        text(chart, &values, &[])?;
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let Err(error) = text(chart, &values, &sets) else { bail!("{case} with {sets:?} is taken") };
        let error = format!("{error:#}");
        ensure!(error.contains(expected), "{case} with {sets:?}: expected {expected:?}, got {error}");
    }
    Ok(())
}

#[test]
fn values_that_no_agent_can_work_with_are_refused() -> Result<()> {
    refused(Chart::Agent, AGENT)
}

#[test]
fn values_that_no_server_can_work_with_are_refused() -> Result<()> {
    refused(Chart::Server, SERVER)
}

/// The checks above refuse no value that the programs start with.
#[test]
fn values_that_programs_start_with_are_taken() -> Result<()> {
    let agent = [
        "sync.interval=60s,sync.intervalCap=1m",
        "agentIdentifiers=host=a%2fb&ipv4=255.9.10.199&ipv6=fd00::1&zone=z",
        "destinations.deny={*,*:22,10.0.0.0/8:8000-9000,fd00::/8,[fd00::/8]:443,::ffff:10.0.0.1,*.Example.:65535}",
        "proxyServer.host=a:1\\,b.example.com\\,[fd00::1]:65535\\,fd00::1\\,10.0.0.1:8132\\,[::1]",
        "serverCount.labelSelector=a=b\\,c!=d\\,x.io/e in (f\\,g)\\,h notin ()\\,j\\,!k\\,l>1\\,m=",
    ];
    for set in agent {
        text(Chart::Agent, &Chart::Agent.case("leases"), &[set.to_owned()]).context(set)?;
    }
    let longest = SOCKET_OF_108_BYTES.strip_suffix('s').context("a name")?;
    for set in [longest, "agentListener.externalHost=fd00::1", "egressSelector.frontendHost=[fd00::1]"] {
        text(Chart::Server, &Chart::Server.case("uds-daemonset"), &[set.to_owned()]).context(set)?;
    }
    let own_folder = "agentListener.tls.hostPath.cert=/etc/kubernetes/pki/konnectivity/tls.crt,\
        agentListener.tls.hostPath.key=/etc/kubernetes/pki/konnectivity/tls.key";
    let fields_of_the_pod = "extraVolumes[0].name=a,\
        extraVolumes[0].projected.sources[0].downwardAPI.items[0].path=a,\
        extraVolumes[0].projected.sources[0].downwardAPI.items[0].fieldRef.fieldPath=metadata.name";
    for set in [own_folder, fields_of_the_pod] {
        text(Chart::Server, &Chart::Server.case("static-pod"), &[set.to_owned()]).context(set)?;
    }
    Ok(())
}

/// Each line of the templates that refuses a value has a row above.
#[test]
fn every_refusal_is_tried() -> Result<()> {
    for (chart, table) in [(Chart::Agent, AGENT), (Chart::Server, SERVER)] {
        let source = std::fs::read_to_string(chart.folder().join("templates/_checks.tpl"))?;
        let written = source.lines().filter(|line| line.contains("{{- fail ")).count();
        let tried = table
            .iter()
            .filter(|(_, _, expected)| !expected.contains("at '/") && !expected.contains("minimum:"));
        ensure!(tried.count() >= written, "{} refuses {written} things, fewer are tried", chart.name());
    }
    Ok(())
}
