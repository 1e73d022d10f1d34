//! The usual release: servers on a Unix socket with leases, agents with tokens; all rights are the rendered ones.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::kube::{ApiServer, Cluster, NODE_ADDRESS, Node, Tools, nodes, workload};
use e2e::pki::Pki;
use e2e::ports::Lease;
use e2e::wait::{DEADLINE, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::helm::Chart;
use crate::kubelet::Running;
use crate::pods::{Pod, string};
use crate::release::{NAMESPACE, file, get, helm, install, run, template};

/// The namespace of the pod whose log is read.
const WORKLOAD: &str = "workload";

pub(crate) async fn carries(tools: &Tools, cluster: &mut Cluster) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("ki").tempdir()?;
    let ports: Vec<Lease> = (0..5).map(|_| Lease::new()).collect::<Result<_>>()?;
    let node = Node::start(tools, cluster.files()).await?;
    nodes(cluster.kubectl(), &node).await?;
    workload(cluster.kubectl(), &node, WORKLOAD).await?;
    let direct = cluster.apiserver().address();
    certificates(cluster, &folder).await?;

    let (_host, mut server) = server(cluster, &folder, &ports, direct).await?;
    let (_kubelet, mut agent) = agent(cluster, &ports, direct).await?;
    agent.wait_probe("readinessProbe").await.map_err(|error| server.process.explain(&error))?;
    server.wait_probe("readinessProbe").await?;
    println!(
        "install: the installed server and agent found each other, by token and lease under the rendered roles"
    );
    let lease = cluster
        .kubectl()
        .ok(&["get", "leases", "-n", NAMESPACE, "-l", "k8s-app=konnectivity-server", "-o", "name"])
        .await?;
    ensure!(lease.lines().count() == 1, "leases: {lease:?}");

    let map = get(cluster, "configmap", "konnectivity-server-egress-selector").await?;
    let configuration = string(&map, "/data/egress-selector-configuration.yaml").to_owned();
    let mut through = cluster.join(tools, &configuration)?;
    through.wait_ready().await?;
    logs(&through, &node).await?;
    println!(
        "install: kubectl logs went through kube-apiserver with the rendered EgressSelectorConfiguration"
    );
    helm_test(cluster, &through).await?;
    failed_test(cluster).await
}

/// Creates the Secrets and ConfigMaps to which the charts' values refer.
async fn certificates(cluster: &Cluster, folder: &TempDir) -> Result<()> {
    let pki = Pki::create(folder.path())?;
    let text = |path: &std::path::Path| std::fs::read_to_string(path);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "name": "konnectivity-server", "namespace": NAMESPACE },
        "stringData": { "tls.crt": text(&pki.cluster_server.cert)?, "tls.key": text(&pki.cluster_server.key)? },
    });
    let map = |name: &str, ca: String| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": NAMESPACE },
            "data": { "ca.crt": ca },
        })
    };
    cluster.kubectl().apply(&secret.to_string()).await?;
    cluster.kubectl().apply(&map("servers-ca", text(&pki.cluster_ca)?).to_string()).await?;
    // In a real cluster a controller publishes it.
    cluster.kubectl().apply(&map("kube-root-ca.crt", text(&cluster.files().ca)?).to_string()).await
}

async fn server(
    cluster: &Cluster,
    folder: &TempDir,
    ports: &[Lease],
    api: std::net::SocketAddr,
) -> Result<(crate::kubelet::Kubelet, Running)> {
    let socket = folder.path().join("s");
    std::fs::create_dir(&socket)?;
    let sets = [
        format!("frontend.uds.hostPath={}", socket.display()),
        format!("agentListener.port={}", ports[0].port()),
        format!("ports.health={}", ports[1].port()),
        format!("ports.admin={}", ports[2].port()),
        "agentListener.externalHost=127.0.0.1".into(),
        format!("agentListener.externalPort={}", ports[0].port()),
        // The agent's id is its pod's name, which its token attests.
        "agentAuth.identityBinding=enforce".into(),
    ];
    let notes = install(cluster, Chart::Server, &Chart::Server.case("uds-nonroot"), &sets).await?;
    for said in [
        "It becomes ready when the first agent connects",
        "helm install konnectivity-agent",
        "--egress-selector-config-file",
    ] {
        ensure!(notes.contains(said), "the notes do not say {said:?}: {notes}");
    }
    let pod = template(cluster, "daemonset", "konnectivity-server").await?;
    let (kubelet, mut running) = run(cluster, &pod, "konnectivity-server-x", api).await?;
    running.wait_probe("startupProbe").await?;
    Ok((kubelet, running))
}

async fn agent(
    cluster: &Cluster,
    ports: &[Lease],
    api: std::net::SocketAddr,
) -> Result<(crate::kubelet::Kubelet, Running)> {
    let map = get(cluster, "configmap", "konnectivity-server-egress-selector").await?;
    let values = file(cluster, "agent-values.yaml", string(&map, "/data/agent-values.yaml"))?;
    let sets = [
        format!("ports.health={}", ports[3].port()),
        format!("ports.admin={}", ports[4].port()),
        "ca.configMap=servers-ca".into(),
        "replicaCount=1".into(),
    ];
    let notes = install(cluster, Chart::Agent, &values, &sets).await?;
    ensure!(notes.contains("--agent-service-account=konnectivity-agent"), "notes: {notes}");
    let pod = template(cluster, "deployment", "konnectivity-agent").await?;
    publish(cluster, &pod, "konnectivity-agent-x").await?;
    run(cluster, &pod, "konnectivity-agent-x", api).await
}

/// Creates the object of a pod that runs here, as controllers and kubelet would.
async fn publish(cluster: &Cluster, pod: &Pod, name: &str) -> Result<()> {
    let mut spec = pod.spec.clone();
    spec["nodeName"] = "node".into();
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": pod.labels },
    });
    cluster.kubectl().apply(&object.to_string()).await?;
    let status = json!({ "phase": "Running", "hostIP": NODE_ADDRESS, "podIP": NODE_ADDRESS, "podIPs": [{ "ip": NODE_ADDRESS }] });
    set_status(cluster, name, &status).await
}

async fn set_status(cluster: &Cluster, name: &str, status: &Value) -> Result<()> {
    let patch = json!({ "status": status }).to_string();
    let args = ["patch", "pod", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", &patch];
    cluster.kubectl().ok(&args).await.map(drop)
}

async fn logs(through: &ApiServer, node: &Node) -> Result<()> {
    std::fs::write(node.log(WORKLOAD, "app", "app"), "one\ntwo\n")?;
    let read = through.kubectl().ok(&["logs", "app", "-c", "app", "-n", WORKLOAD]).await?;
    ensure!(read == "one\ntwo\n", "the log reads {read:?}");
    let dials = through.metrics().await?.sum("apiserver_egress_dialer_dial_start_total", &[]);
    ensure!(
        dials.is_some_and(|dials| dials > 0.0),
        "kube-apiserver counts no dial through the tunnel: {dials:?}"
    );
    Ok(())
}

/// The name of the pod of `helm test`.
const TEST: &str = "konnectivity-agent-test";

async fn begin_test(cluster: &Cluster) -> Result<String> {
    helm(cluster, vec!["test".into(), "konnectivity-agent".into(), "--timeout=2m".into()]).await
}

async fn test_pod(cluster: &Cluster) -> Result<Pod> {
    let there = until("the pod of helm test", DEADLINE, || async { get(cluster, "pod", TEST).await.ok() });
    crate::pods::pods(&[there.await?])?.pop().context("a pod")
}

/// Runs `helm test`, with this process as the kubelet of its pod.
async fn helm_test(cluster: &Cluster, through: &ApiServer) -> Result<()> {
    let test = begin_test(cluster);
    let pod = async {
        let pod = test_pod(cluster).await?;
        let (_kubelet, mut running) = run(cluster, &pod, TEST, through.address()).await?;
        let status = running.process.exit(Duration::from_secs(90)).await?;
        println!("install: konnectivity-check: {}", running.process.log().join(" / "));
        let phase = if status.success() { "Succeeded" } else { "Failed" };
        set_status(cluster, TEST, &json!({ "phase": phase })).await
    };
    let (said, ran) = tokio::join!(test, pod);
    ran?;
    let said = said?;
    ensure!(said.contains("Phase:          Succeeded"), "helm test: {said}");
    println!("install: helm test passed");
    Ok(())
}

/// A failed `helm test` leaves its pod, whose log contains the reason, and no account with its rights.
async fn failed_test(cluster: &Cluster) -> Result<()> {
    let pod = async {
        test_pod(cluster).await?;
        set_status(cluster, TEST, &json!({ "phase": "Failed" })).await
    };
    let (said, failed) = tokio::join!(begin_test(cluster), pod);
    failed?;
    ensure!(said.is_err(), "helm test passed with a pod that failed: {said:?}");
    get(cluster, "pod", TEST).await.context("the pod is gone, and its log")?;
    for kind in ["rolebinding", "role", "serviceaccount"] {
        let Err(error) = get(cluster, kind, TEST).await else { bail!("the {kind} of helm test is left") };
        ensure!(format!("{error:#}").contains("NotFound"), "{kind}: {error:#}");
    }
    println!("install: a failed helm test left its pod alone");
    Ok(())
}
