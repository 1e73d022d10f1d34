//! The server chart's configuration for kube-apiserver is complete: every file in it is mounted, from a source that exists
//! where kube-apiserver runs, and the frontend listens at the configured address.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::helm::{Chart, objects};
use crate::pods::{list, of_kind, pods, string};
use crate::references::mounted_once;
use crate::yaml;

#[test]
fn egress_configuration_names_existing_listeners() -> Result<()> {
    for case in Chart::Server.cases()? {
        let objects = objects(Chart::Server, &Chart::Server.case(&case), &[])?;
        check(&objects).with_context(|| case.clone())?;
    }
    Ok(())
}

/// The certificate that cert-manager issues for a server beside kube-apiserver contains the name that kube-apiserver dials.
#[test]
fn a_neighbours_certificate_names_it() -> Result<()> {
    let sets = ["existingSecret=", "certManager.enabled=true", "certManager.issuerRef.name=issuer"];
    let sets = sets.map(|set| format!("frontend.tcp.tls.{set}"));
    for case in ["sidecar-tcp", "tcp-daemonset"] {
        let objects = objects(Chart::Server, &Chart::Server.case(case), &sets)?;
        let certificate = of_kind(&objects, "Certificate").next().context("a certificate")?;
        let names = list(certificate, "/spec/dnsNames");
        ensure!(names.iter().eq(["localhost"].iter()), "{case}: the certificate is for {names:?}");
        check(&objects)?;
    }
    Ok(())
}

/// A certificate that cert-manager issues has a host's name among its names, and a host's address among its addresses.
#[test]
fn a_certificate_names_a_host_by_its_kind() -> Result<()> {
    let tries = [("k.example.com", "dnsNames"), ("203.0.113.10", "ipAddresses"), ("fd00::1", "ipAddresses")];
    for (host, expected) in tries {
        let url = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let sets =
            [format!("agentListener.externalHost={host}"), format!("egressSelector.frontendHost={url}")];
        let objects = objects(Chart::Server, &Chart::Server.case("everything"), &sets)?;
        ensure!(of_kind(&objects, "Certificate").count() == 2, "not two certificates");
        for certificate in of_kind(&objects, "Certificate") {
            for field in ["dnsNames", "ipAddresses"] {
                let names = list(certificate, &format!("/spec/{field}"));
                ensure!(names.iter().any(|name| name == host) == (field == expected), "{field}: {names:?}");
                ensure!(names.iter().all(|name| host == url || *name != url), "{field}: {names:?}");
            }
        }
    }
    Ok(())
}

/// The frontend of a server beside kube-apiserver listens only for that host or pod, unless another name is configured.
#[test]
fn a_neighbours_frontend_is_on_loopback() -> Result<()> {
    for case in ["sidecar-tcp", "tcp-daemonset"] {
        for (sets, expected) in
            [(vec![], true), (vec!["egressSelector.frontendHost=front.example.com".into()], false)]
        {
            let objects = objects(Chart::Server, &Chart::Server.case(case), &sets)?;
            let pod = pods(&objects)?.into_iter().find(|pod| !pod.test).context("a pod of servers")?;
            let bound = list(pod.main()?, "/args").iter().any(|arg| arg == "--server-bind-address=127.0.0.1");
            ensure!(bound == expected, "{case} with {sets:?}: on loopback {bound}");
        }
    }
    Ok(())
}

/// If kube-apiserver is a pod like others, it reaches servers on the host's network through their Service.
#[test]
fn a_pod_of_kube_apiserver_dials_the_service() -> Result<()> {
    let sets = ["egressSelector.apiserverClientSecret=client".to_owned()];
    let objects = objects(Chart::Server, &Chart::Server.case("tcp-daemonset"), &sets)?;
    let services: Vec<&str> =
        of_kind(&objects, "Service").map(|service| string(service, "/metadata/name")).collect();
    ensure!(services.contains(&"konnectivity-server-frontend"), "Services {services:?}");
    check(&objects)
}

fn check(objects: &[Value]) -> Result<()> {
    let map = of_kind(objects, "ConfigMap")
        .find(|map| map["data"]["kube-apiserver.yaml"].is_string())
        .context("nothing for kube-apiserver")?;
    let patch = yaml::document(string(map, "/data/kube-apiserver.yaml"))?["spec"].take();
    let config = yaml::document(string(map, "/data/egress-selector-configuration.yaml"))?;
    let connection = config.pointer("/egressSelections/0/connection").context("a connection")?;
    let servers = pods(objects)?.into_iter().find(|pod| !pod.test).context("a pod of servers")?;
    let sidecar = servers.owner.contains("sidecar");
    let mut volumes = list(&patch, "/volumes").to_vec();
    if sidecar {
        volumes.extend_from_slice(list(&servers.spec, "/volumes"));
    }
    let container = patch.pointer("/containers/0").context("kube-apiserver's container")?;
    mounted_once(container)?;
    for volume in list(&patch, "/volumes") {
        let used = list(container, "/volumeMounts").iter().any(|mount| mount["name"] == volume["name"]);
        ensure!(used, "nothing mounts {volume}");
        let of_the_host = volume.get("hostPath").is_some();
        ensure!(!(sidecar && of_the_host), "a pod among others has no files of its host: {volume}");
    }
    // A strategic merge patch with a command would replace kube-apiserver's.
    ensure!(container.get("command").is_none(), "kube-apiserver would run {}", container["command"]);
    let flag = yaml::document(string(map, "/data/kube-apiserver-flag.yaml"))?;
    let added = |change: &&Value| change["op"] == "add" && change["path"] == "/spec/containers/0/command/-";
    let told = list(&flag, "").iter().filter(added).filter_map(|change| change["value"].as_str());
    let told = told.filter_map(|argument| Some(argument.split_once('=')?.1));
    let transport = &connection["transport"];
    let read =
        ["/uds/udsName", "/tcp/tlsConfig/caBundle", "/tcp/tlsConfig/clientCert", "/tcp/tlsConfig/clientKey"];
    let read = read.iter().filter_map(|pointer| transport.pointer(pointer)?.as_str());
    let files: Vec<&str> = told.chain(read).collect();
    ensure!(files.len() > 1, "only {files:?} to read");
    for file in files {
        there(file, container, &volumes, objects).with_context(|| file.to_owned())?;
    }
    let on_its_host = on_its_host(&patch);
    let beside = sidecar || servers.spec["hostNetwork"] == true && on_its_host;
    let Some(at) = string(transport, "/tcp/url").strip_prefix("https://") else { return Ok(()) };
    ensure!(!on_its_host || !at.contains(".svc:"), "a host resolves no Service: {at}");
    listens(at, objects, beside)
}

/// Whether kube-apiserver uses its host's files, and so its host's network and resolver, which knows no Service.
fn on_its_host(patch: &Value) -> bool {
    list(patch, "/volumes").iter().all(|volume| volume.get("hostPath").is_some())
}

/// Checks that a mount contains the file, and that a ConfigMap of the release behind the mount contains it.
fn there(file: &str, container: &Value, volumes: &[Value], objects: &[Value]) -> Result<()> {
    let mounts = list(container, "/volumeMounts").iter();
    let (mount, name) = mounts
        .filter_map(|mount| Some((mount, file.strip_prefix(string(mount, "/mountPath"))?.strip_prefix('/')?)))
        .next()
        .context("not mounted")?;
    let mut volumes = volumes.iter().filter(|volume| volume["name"] == mount["name"]);
    let volume = volumes.next().context("a mount without volume")?;
    ensure!(volumes.next().is_none(), "two volumes of the same name");
    for source in ["configMap", "secret"] {
        let Some(source) = volume.get(source) else { continue };
        let item = list(source, "/items").iter().find(|item| item["path"] == name).context("no item")?;
        let Some(map) = source["name"].as_str() else { continue };
        let there = of_kind(objects, "ConfigMap").any(|object| {
            object["metadata"]["name"] == map && object["data"][string(item, "/key")].is_string()
        });
        ensure!(there, "no such key in a ConfigMap {map}");
    }
    Ok(())
}

/// Checks the frontend's address: a Service with that port, or the pod or host itself if servers share kube-apiserver's; other
/// names are an operator's own.
fn listens(at: &str, objects: &[Value], beside: bool) -> Result<()> {
    let (host, port) = at.rsplit_once(':').context("a port")?;
    let port: u64 = port.parse()?;
    if beside {
        ensure!(host == "localhost", "kube-apiserver looks for a server of its own pod or host at {host}");
        let mut names = of_kind(objects, "Service").map(|service| string(service, "/metadata/name"));
        ensure!(!names.any(|name| name.ends_with("-frontend")), "a Service that nobody dials");
        return Ok(());
    }
    if !host.ends_with(".svc") {
        return Ok(());
    }
    let service = of_kind(objects, "Service").find(|service| {
        let (name, namespace) = (string(service, "/metadata/name"), string(service, "/metadata/namespace"));
        host == format!("{name}.{namespace}.svc")
    });
    let service = service.with_context(|| format!("no Service is called {host}"))?;
    let listening = list(service, "/spec/ports").iter().any(|open| open["port"] == port);
    ensure!(listening, "{host} has no port {port}");
    Ok(())
}
