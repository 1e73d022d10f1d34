//! Servers whose agents are in another cluster: the agents' values contain nothing that is valid only in the servers' cluster.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::helm::{Chart, argument, template};
use crate::pods::{of_kind, string};
use crate::yaml;

/// The Service's name inside its own cluster.
const SERVICE: &str = "konnectivity-server.kube-system.svc";

/// The agents' values of a case, and the notes of its release.
fn told(case: &str, sets: &[&str]) -> Result<(Value, String)> {
    // helm template does not print notes, but another template may include them.
    let notes = "{{ include (print $.Template.BasePath \"/NOTES.txt\") $ | toJson }}";
    let object = format!("{{kind: Notes, apiVersion: v1, metadata: {{name: notes}}, said: {notes}}}");
    let extra = format!("extraObjects={}", json!([object]));
    let sets: Vec<String> = sets.iter().map(|set| argument(set)).collect();
    let args: Vec<&str> = ["--set-json", &extra].into_iter().chain(sets.iter().map(String::as_str)).collect();
    let objects = yaml::documents(&template(Chart::Server, &Chart::Server.case(case), &args)?)?;
    let notes = of_kind(&objects, "Notes").next().context("notes")?;
    let values = of_kind(&objects, "ConfigMap")
        .find_map(|map| map["data"]["agent-values.yaml"].as_str())
        .context("values for agents")?;
    Ok((yaml::document(values)?, string(notes, "/said").to_owned()))
}

/// A kubeconfig means that agents are in another cluster, where the Service's name does not resolve; but a kubeconfig on the
/// host may be for its own cluster.
#[test]
fn agents_of_another_cluster_get_no_services_name() -> Result<()> {
    let tries: [(&str, &[&str], &str); 6] = [
        ("go-image", &[], SERVICE),
        ("go-image", &["kubeconfig.existingSecret=agents-cluster"], ""),
        ("go-image", &["kubeconfig.hostPath=/run/kubeconfig", "hostPathsPrepared=true"], ""),
        ("tcp-daemonset", &["agentListener.externalHost="], ""),
        ("sidecar", &["agentListener.externalHost=", "service.type=ClusterIP"], ""),
        ("uds-daemonset", &["agentListener.externalHost="], SERVICE),
    ];
    for (case, sets, expected) in tries {
        let (values, notes) = told(case, sets)?;
        let host = string(&values, "/proxyServer/host");
        ensure!(host == expected, "{case} with {sets:?}: agents are told {host:?}");
        let said = notes.contains("proxyServer.host is empty in these values: fill in the name");
        ensure!(said == expected.is_empty(), "{case} with {sets:?}: {notes}");
    }
    Ok(())
}

/// The notes' commands for agents go to the cluster of the agents: by a kubeconfig if the values say that it is another one, by a
/// sentence if they do not.
#[test]
fn the_notes_name_the_cluster_of_the_agents() -> Result<()> {
    for (case, commands, sentence) in
        [("enforce", 2, false), ("sidecar", 2, false), ("deployment", 0, true), ("uds-daemonset", 0, false)]
    {
        let (_, notes) = told(case, &[])?;
        ensure!(notes.matches(" --kubeconfig AGENTS-CLUSTER\n").count() == commands, "{case}: {notes}");
        ensure!(notes.contains("If the agents are in another cluster") == sentence, "{case}: {notes}");
    }
    Ok(())
}

/// Agents on the host's network need their cluster's DNS only for a Service's name.
#[test]
fn agents_ask_the_clusters_dns_for_services_alone() -> Result<()> {
    let tries = [
        ("", "agents-cluster", Value::Null),
        ("", "", json!("ClusterFirstWithHostNet")),
        ("servers.elsewhere.svc.cluster.local", "agents-cluster", json!("ClusterFirstWithHostNet")),
        ("konnectivity.example.com", "agents-cluster", Value::Null),
    ];
    for (host, secret, expected) in tries {
        let host = format!("agentListener.externalHost={host}");
        let secret = format!("kubeconfig.existingSecret={secret}");
        let sets = ["service.type=ClusterIP", "service.externalTrafficPolicy=", &host, &secret];
        let (values, _) = told("enforce", &sets)?;
        ensure!(values["hostNetwork"] == true && values["dnsPolicy"] == expected, "{sets:?}: {values}");
    }
    Ok(())
}

/// The notes name the user and group of the server's process, with whom kube-apiserver shares the socket.
#[test]
fn the_notes_name_the_sockets_owner() -> Result<()> {
    let tries: [(&str, &str); 4] = [
        ("hostPathsPrepared=true", "65532:65532"),
        ("podSecurityContext=null", "65532:65532"),
        ("--set-json=podSecurityContext.runAsUser=1000680000", "1000680000:65532"),
        ("securityContext.runAsUser=7,securityContext.runAsGroup=8", "7:8"),
    ];
    for (set, owner) in tries {
        let (_, notes) = told("uds-nonroot", &[set])?;
        ensure!(notes.contains(&format!("user or group ({owner}), or be root")), "{set}: {notes}");
    }
    Ok(())
}
