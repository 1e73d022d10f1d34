//! Kubeconfigs of every kind; each is proven by a lease that appears.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::pair::{Pair, Setup};
use e2e::process::Signal;
use e2e::wait::{DEADLINE, until};
use serde_json::{Value, json};

use crate::world::{Installation, World};

/// A kubeconfig with this user section.
fn kubeconfig(installation: &Installation<'_>, name: &str, user: &Value) -> Result<String> {
    let files = installation.world.cluster.files();
    let server = format!("https://{}", installation.world.cluster.apiserver().address());
    // YAML's own style, with the CA as data.
    use base64::Engine;
    let ca = base64::engine::general_purpose::STANDARD.encode(std::fs::read(&files.ca)?);
    let text = format!(
        "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: it\n\
         contexts:\n- name: it\n  context:\n    cluster: c\n    user: u\n    namespace: ignored\n\
         clusters:\n- name: c\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
         users:\n- name: u\n  user: {user}\n"
    );
    installation.file(name, &text)
}

async fn lease_appears(installation: &Installation<'_>, kubeconfig: &str, id: &str) -> Result<Pair> {
    let setup = Setup::grpc()
        .agents(0)
        .server_arg("--enable-lease-controller")
        .server_arg(format!("--lease-namespace={}", installation.namespace))
        .server_arg(format!("--server-id={id}"))
        .server_arg(format!("--kubeconfig={kubeconfig}"));
    let pair = setup.start().await?;
    let what = format!("the lease of {id}");
    let seen = until(&what, DEADLINE, || async {
        installation.holders().await.ok().filter(|holders| holders.contains(&id.to_owned()))
    });
    seen.await.map_err(|error| pair.server().process.explain(&error))?;
    Ok(pair)
}

pub(crate) async fn certificate_token_file_and_plug_in(world: Arc<World>) -> Result<()> {
    let installation = world.install("kinds").await?;
    let admin = world.cluster.apiserver().kubeconfig().display().to_string();
    lease_appears(&installation, &admin, "by-certificate").await?;
    let token = installation.api_token("server").await?;
    let path = installation.file("token", &format!("{token}\n"))?;
    let by_file = kubeconfig(&installation, "file.yaml", &json!({ "tokenFile": path }))?;
    lease_appears(&installation, &by_file, "by-token-file").await?;
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": { "token": token },
    });
    let plugin = installation.file("plugin", &format!("#!/bin/sh\necho '{credential}'\n"))?;
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755))?;
    let exec = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "Never",
    } });
    let by_exec = kubeconfig(&installation, "exec.yaml", &exec)?;
    lease_appears(&installation, &by_exec, "by-plug-in").await.map(drop)
}

/// kubelet rotates a mounted token by replacing the file; the next request uses the new token.
pub(crate) async fn an_expired_token_is_replaced_in_its_file(world: Arc<World>) -> Result<()> {
    let installation = world.install("rotated").await?;
    let path = installation.file("token", "not-a-token\n")?;
    let by_file = kubeconfig(&installation, "file.yaml", &json!({ "tokenFile": path }))?;
    let setup = Setup::grpc()
        .agents(0)
        .server_arg("--enable-lease-controller")
        .server_arg("--lease-namespace=rotated")
        .server_arg(format!("--kubeconfig={by_file}"));
    let mut pair = setup.start().await?;
    pair.server()
        .wait_metric("lease_list_total", &[("http_status_code", "401"), ("reason", "Unauthorized")], 1.0)
        .await?;
    installation.file("token", &installation.api_token("server").await?)?;
    until("the lease", DEADLINE, || async {
        installation.holders().await.ok().filter(|all| all == &["server-0"])
    })
    .await?;
    // After its end the whole log is written.
    let server = &mut pair.server_mut().process;
    server.signal(Signal::TERM)?;
    ensure!(server.exit(DEADLINE).await?.success(), "the server did not stop in order");
    ensure!(!server.said("not-a-token"), "the token is in the log");
    Ok(())
}
