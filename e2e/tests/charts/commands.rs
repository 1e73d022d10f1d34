//! Runs the rendered command lines with the real programs: every case starts, its probes succeed, its servers connect to the
//! agents that its own values describe, and bytes pass through. The test adds no argument.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::frontend::{Frontend, Mode, Place};
use e2e::pki::Pki;
use e2e::ports::Lease;
use fake_apiserver::FakeApi;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::helm::{Chart, all_cases, objects};
use crate::kubelet::{Kubelet, Running};
use crate::pods::{Pod, list, of_kind, pods, string};

/// A kubeconfig of a cluster that is never contacted, because agents authenticate by certificate.
const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: c, \
    clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: {token: t}}], \
    contexts: [{name: c, context: {cluster: c, user: u}}]}";

/// Ports that a release may use on this machine, as `--set` arguments.
struct Ports {
    leases: Vec<Lease>,
    sets: Vec<String>,
}

impl Ports {
    fn lease(values: &[&str]) -> Result<Self> {
        let leases = values.iter().map(|_| Lease::new()).collect::<Result<Vec<_>>>()?;
        let sets =
            values.iter().zip(&leases).map(|(value, lease)| format!("{value}={}", lease.port())).collect();
        Ok(Self { leases, sets })
    }
}

/// Certificates, and a node that has them under every name in the cases.
fn node(pki: &Pki) -> Result<Kubelet> {
    let mut node = Kubelet::new()?;
    let (server, front, agent) = (&pki.cluster_server, &pki.front_server, &pki.agent);
    for name in ["konnectivity-server", "tunnel-server-agents"] {
        node.keep("Secret", name, &[("tls.crt", &server.cert), ("tls.key", &server.key)])?;
    }
    for name in ["konnectivity-frontend", "tunnel-server-frontend"] {
        let files: [(&str, &Path); 3] =
            [("tls.crt", &front.cert), ("tls.key", &front.key), ("ca.crt", &pki.front_ca)];
        node.keep("Secret", name, &files)?;
    }
    node.keep("ConfigMap", "apiserver-client-ca", &[("ca.crt", &pki.front_ca)])?;
    node.keep("ConfigMap", "konnectivity-agents-ca", &[("ca.crt", &pki.cluster_ca)])?;
    node.keep("Secret", "konnectivity-agents-ca", &[("ca.crt", &pki.cluster_ca)])?;
    for name in ["konnectivity-agent-client", "tunnel-agent-client"] {
        let files: [(&str, &Path); 3] =
            [("tls.crt", &agent.cert), ("tls.key", &agent.key), ("ca.crt", &pki.cluster_ca)];
        node.keep("Secret", name, &files)?;
    }
    for name in ["kube-root-ca.crt", "servers-ca"] {
        node.keep("ConfigMap", name, &[("ca.crt", &pki.cluster_ca), ("bundle.pem", &pki.cluster_ca)])?;
    }
    node.host_file("/etc/kubernetes/konnectivity-tls/tls.crt", &server.cert)?;
    node.host_file("/etc/kubernetes/konnectivity-tls/tls.key", &server.key)?;
    node.host_file("/etc/kubernetes/konnectivity-tls/ca.crt", &pki.cluster_ca)?;
    let kubeconfig = pki.cluster_ca.with_file_name("kubeconfig");
    std::fs::write(&kubeconfig, KUBECONFIG)?;
    node.host_file("/etc/kubernetes/konnectivity-server.conf", &kubeconfig)?;
    node.keep("Secret", "agents-cluster", &[("kubeconfig", &kubeconfig)])?;
    node.keep("Secret", "konnectivity-kubeconfig", &[("kubeconfig", &kubeconfig)])?;
    node.token("system:konnectivity-server", "a-token");
    // This port is closed: clients of the Kubernetes API keep retrying.
    node.account("kube-system", "a-token", &std::fs::read(&pki.cluster_ca)?)?;
    node.apiserver(([127, 0, 0, 1], 1).into());
    Ok(node)
}

/// The pod of the release's program.
fn program(objects: &[Value]) -> Result<Pod> {
    pods(objects)?.into_iter().find(|pod| !pod.test).context("a pod")
}

/// The value of a flag of a pod's container.
fn flag(pod: &Pod, name: &str) -> Result<String> {
    Ok(flags(pod, name)?.pop().unwrap_or_default())
}

/// The values of all occurrences of a flag.
fn flags(pod: &Pod, name: &str) -> Result<Vec<String>> {
    let prefix = format!("--{name}=");
    let args = list(pod.main()?, "/args").iter().filter_map(Value::as_str);
    Ok(args.filter_map(|argument| argument.strip_prefix(&prefix)).map(str::to_owned).collect())
}

/// A running server of a case, and the objects of its release.
struct Server {
    running: Running,
    frontends: Vec<Frontend>,
    objects: Vec<Value>,
    ports: Ports,
}

fn server(node: &Kubelet, pki: &Pki, case: &str, more: &[&str]) -> Result<Server> {
    let ports = Ports::lease(&["agentListener.port", "ports.health", "ports.admin", "frontend.tcp.port"])?;
    let sets: Vec<String> =
        ports.sets.iter().cloned().chain(more.iter().map(|set| (*set).to_owned())).collect();
    let objects = objects(Chart::Server, &Chart::Server.case(case), &sets)?;
    let pod = program(&objects)?;
    let running = node.run(&pod, "server-0")?;
    let mut entries = flags(&pod, "frontend")?;
    if entries.is_empty() {
        let (mode, socket) = (flag(&pod, "mode")?, flag(&pod, "uds-name")?);
        entries.push(match socket.as_str() {
            "" => format!("{mode}+tcp:{}", flag(&pod, "server-port")?),
            socket => format!("{mode}+unix:{socket}"),
        });
    }
    let frontend = |entry: &String| {
        let (kind, address) = entry.split_once(':').context("an address")?;
        let mode = if kind.starts_with("http-connect+") { Mode::HttpConnect } else { Mode::Grpc };
        let port = address.rsplit(':').next().unwrap_or_default();
        let place = match kind.ends_with("+tcp") {
            true => Place::Tls(([127, 0, 0, 1], port.parse()?).into()),
            false => Place::Unix(running.path(address)),
        };
        Ok(Frontend::new(mode, place, pki.clone()))
    };
    let frontends = entries.iter().map(frontend).collect::<Result<_>>()?;
    Ok(Server { running, frontends, objects, ports })
}

/// A file with the values for agents from the ConfigMap of a server's release.
fn agent_values(server: &[Value], folder: &Path) -> Result<PathBuf> {
    let map = of_kind(server, "ConfigMap")
        .find(|map| string(map, "/metadata/name").ends_with("-egress-selector"))
        .context("the ConfigMap for kube-apiserver")?;
    let file = folder.join("agent-values.yaml");
    std::fs::write(&file, string(map, "/data/agent-values.yaml"))?;
    Ok(file)
}

/// The agent that the server's release describes: with the values of its ConfigMap, and this machine's ports.
fn agent(node: &Kubelet, server: &Server, folder: &Path) -> Result<(Running, Ports)> {
    let file = agent_values(&server.objects, folder)?;
    let ports = Ports::lease(&["ports.health", "ports.admin"])?;
    let port = server.ports.leases.first().context("the agent port")?.port();
    let mut sets = ports.sets.clone();
    sets.extend(["proxyServer.host=127.0.0.1".into(), format!("proxyServer.port={port}")]);
    let objects = objects(Chart::Agent, &file, &sets)?;
    Ok((node.run(&program(&objects)?, "agent-0")?, ports))
}

/// A fake API server that accepts the agents' token, and a kubeconfig for it.
async fn api(folder: &Path) -> Result<(FakeApi, PathBuf)> {
    let api = FakeApi::start().await?;
    let user = json!({
        "username": "system:serviceaccount:kube-system:konnectivity-agent",
        "extra": {
            "authentication.kubernetes.io/node-name": ["node-1"],
            "authentication.kubernetes.io/pod-name": ["agent-0"],
        },
    });
    let audiences = ["system:konnectivity-server"];
    api.set_review("a-token", json!({ "authenticated": true, "user": user, "audiences": audiences }));
    let kubeconfig = api.kubeconfig(folder, "{token: servers}")?;
    Ok((api, kubeconfig))
}

/// A server of the case and its agent become ready, and a connection through both carries bytes.
async fn carries(case: &str, more: &[&str]) -> Result<()> {
    let folder = TempDir::new()?;
    let pki = Pki::create(folder.path())?;
    let mut node = node(&pki)?;
    let api = api(folder.path()).await?;
    node.keep("Secret", "agents-cluster", &[("kubeconfig", &api.1)])?;
    let mut server = server(&node, &pki, case, more)?;
    server.running.wait_probe("startupProbe").await?;
    server.running.wait_probe("livenessProbe").await?;
    let (mut agent, _ports) = agent(&node, &server, folder.path())?;
    agent.wait_probe("readinessProbe").await.map_err(|error| server.running.process.explain(&error))?;
    server.running.wait_probe("readinessProbe").await?;
    let endpoint = Endpoint::echo().await?;
    for frontend in &server.frontends {
        works(frontend, &endpoint.target()).await?;
    }
    ensure!(endpoint.accepted() > 0, "the endpoint saw nothing");
    Ok(())
}

/// Settings for certificates instead of tokens.
const BY_CERTIFICATE: [&str; 2] =
    ["agentAuth.mode=mtls", "agentListener.clientCA.hostPath=/etc/kubernetes/konnectivity-tls/ca.crt"];

#[tokio::test]
async fn a_deployment_behind_a_service_carries() -> Result<()> {
    carries("deployment", &[]).await
}

#[tokio::test]
async fn agent_identifiers_of_the_chart_pass_enforcement_by_token() -> Result<()> {
    carries("enforce", &[]).await?;
    carries("enforce", &["agentAuth.sourceAddress=false", "service.externalTrafficPolicy="]).await
}

#[tokio::test]
async fn agent_identifiers_of_the_chart_pass_enforcement_by_certificate() -> Result<()> {
    let enforce = [
        "agentAuth.identityBinding=enforce",
        "agentAuth.sourceAddress=true",
        "agentAuth.defaultRouteAllowedNames={localhost}",
        "service.externalTrafficPolicy=Local",
    ];
    carries("deployment", &enforce).await
}

#[tokio::test]
async fn a_sidecar_on_a_port_carries() -> Result<()> {
    carries("sidecar-tcp", &[]).await
}

#[tokio::test]
async fn a_daemon_set_on_a_port_carries() -> Result<()> {
    carries("tcp-daemonset", &[]).await
}

#[tokio::test]
async fn two_frontends_carry() -> Result<()> {
    carries("two-frontends", &[]).await?;
    // The change of kube-apiserver's configuration restarts no server.
    let args = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        flags(&program(&objects(Chart::Server, &Chart::Server.case("two-frontends"), &sets)?)?, "frontend")
    };
    let changed = [
        "mode=http-connect",
        "frontend.type=tcp",
        "frontend.additional[0].mode=grpc",
        "frontend.additional[0].type=uds",
        "frontend.additional[0].socketName=konnectivity-server.socket",
    ];
    assert_eq!(args(&[])?, args(&changed)?);
    Ok(())
}

#[tokio::test]
async fn flags_that_go_has_too_carry() -> Result<()> {
    carries("go-image", &[]).await
}

#[tokio::test]
async fn a_daemon_set_on_a_socket_carries_by_certificate() -> Result<()> {
    carries("uds-daemonset", &BY_CERTIFICATE).await
}

#[tokio::test]
async fn a_static_pod_carries_by_certificate() -> Result<()> {
    carries("static-pod", &BY_CERTIFICATE).await
}

/// Every case of both charts: the program accepts its flags and opens its ports, whatever it then cannot reach.
#[tokio::test]
async fn every_case_starts() -> Result<()> {
    let folder = TempDir::new()?;
    let pki = Pki::create(folder.path())?;
    let node = node(&pki)?;
    for (chart, case) in all_cases()? {
        let mut values = vec!["ports.health", "ports.admin"];
        match chart {
            Chart::Agent => values.push("proxyServer.port"),
            Chart::Server => values.extend(["agentListener.port", "frontend.tcp.port"]),
        }
        let mut ports = Ports::lease(&values)?;
        if chart == Chart::Agent {
            // This port is closed, too, and no name is looked up.
            ports.sets.extend(["proxyServer.host=127.0.0.1", "proxyEnv.httpsProxy="].map(str::to_owned));
        }
        let objects = objects(chart, &chart.case(&case), &ports.sets)?;
        let mut running = node.run(&program(&objects)?, &format!("{}-{case}", chart.name()))?;
        let started = running.wait_probe("startupProbe").await;
        started.with_context(|| format!("{} {case}", chart.name()))?;
    }
    Ok(())
}

/// The server starts with each cipher suite that the schema names.
#[tokio::test]
async fn the_server_knows_the_cipher_suites_of_the_schema() -> Result<()> {
    let schema = std::fs::read(Chart::Server.folder().join("values.schema.json"))?;
    let schema: Value = serde_json::from_slice(&schema)?;
    let suites = list(&schema, "/properties/cipherSuites/items/enum").iter().filter_map(Value::as_str);
    let suites = suites.collect::<Vec<_>>();
    ensure!(suites.len() > 10, "the schema names {suites:?}");
    let suites = suites.join(",");
    let folder = TempDir::new()?;
    let pki = Pki::create(folder.path())?;
    let set = format!("cipherSuites={{{suites}}}");
    let node = node(&pki)?;
    let mut server = server(&node, &pki, "deployment", &[set.as_str()])?;
    server.running.wait_probe("startupProbe").await
}

/// The defaults are the safe choice, and Go's image gets no flag of our own.
#[test]
fn the_defaults_of_own_flags_are_the_safe_ones() -> Result<()> {
    let server = program(&objects(Chart::Server, &Chart::Server.case("uds-daemonset"), &[])?)?;
    ensure!(flag(&server, "require-agent-auth")? == "true", "agents may be anybody");
    ensure!(flag(&server, "graceful-shutdown-timeout")? == "15s", "no graceful time-out");
    let agent = program(&objects(Chart::Agent, &Chart::Agent.case("token-deployment"), &[])?)?;
    ensure!(flag(&agent, "drain-timeout")? == "25s", "a drain without end");
    ensure!(flag(&agent, "allow-cloud-metadata")?.is_empty(), "metadata services are within reach");
    let go = |chart: Chart, set: &str| objects(chart, &chart.case("go-image"), &[set.into()]);
    let server = go(Chart::Server, "leases.enabled=true,imagePullSecrets[0].name=registry")?;
    let folder = TempDir::new()?;
    let told = program(&objects(Chart::Agent, &agent_values(&server, folder.path())?, &[])?)?;
    ensure!(told.spec["imagePullSecrets"][0]["name"] == "registry", "{}", told.spec);
    for pod in [program(&server)?, program(&go(Chart::Agent, "serverCount.leases=true")?)?, told] {
        ensure!(string(pod.main()?, "/image").ends_with(":v0.36.0"), "{}", pod.main()?["image"]);
        for own in [
            "require-agent-auth",
            "drain-timeout",
            "readiness-policy",
            "agent-identity-binding",
            "agent-identity-source-address",
            "default-route-allowed-names",
            "lease-label-selector",
            "min-ready-servers",
            "memory-limit",
        ] {
            ensure!(flag(&pod, own)?.is_empty(), "Go's image gets --{own}");
        }
    }
    Ok(())
}
