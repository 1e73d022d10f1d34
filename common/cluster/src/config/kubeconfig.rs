//! A kubeconfig: the cluster and the user of its current context. Follows client-go's `clientcmd` for one named file:
//! relative paths are relative to the file's folder, data takes precedence over files.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use net::env_proxy::Proxy;
use net::host_port::is_loopback;
use serde::Deserialize;
use serde_json::Value;

use super::credentials::{Credentials, bearer};
use super::exec::{Exec, Plugin};
use super::tls::{Pem, TlsFiles};
use super::{Config, Server, yaml};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    current_context: Option<String>,
    contexts: Option<Vec<Named<Context>>>,
    clusters: Option<Vec<Named<Cluster>>>,
    users: Option<Vec<Named<User>>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user", alias = "extension")]
    content: Option<T>,
}

#[derive(Deserialize, Default)]
struct Context {
    #[serde(default)]
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
    extensions: Option<Vec<Named<Value>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    exec: Option<Plugin>,
    auth_provider: Option<Value>,
    #[serde(rename = "as")]
    impersonated: Option<String>,
}

/// Reads a file.
pub(super) fn load(path: &Path) -> Result<Config, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {}", path.display(), net::tls::read_failure(&error)))?;
    let syntax = |why: String| format!("{path:?} is no kubeconfig: {why}");
    let value = yaml::parse(&text).map_err(syntax)?;
    if value.is_null() {
        return Err(syntax("it is empty".into()));
    }
    // serde's error text could quote the value, which may be a secret.
    let file: File = serde_json::from_value(value)
        .map_err(|_| syntax("its sections are not those of a Config (clusters, contexts, users)".into()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    resolve(file, folder).map_err(|why| format!("{path:?}: {why}"))
}

fn resolve(file: File, folder: &Path) -> Result<Config, String> {
    let current = file.current_context.filter(|name| !name.is_empty());
    let current = current.ok_or("current-context is empty: name one of the contexts")?;
    let context = find(file.contexts, "context", &current)?;
    let cluster = find(file.clusters, "cluster", &context.cluster)?;
    let mut user =
        if context.user.is_empty() { User::default() } else { find(file.users, "user", &context.user)? };
    let proxy = cluster.proxy_url.as_deref().filter(|url| !url.is_empty());
    let proxy = proxy.map(|url| Proxy::parse_for_http("proxy-url", url).map_err(|error| error.to_string()));
    let Cluster { certificate_authority: file, certificate_authority_data: data, .. } = &cluster;
    let ca = pem("certificate-authority", file.as_ref(), data.as_deref(), folder)?;
    let identity = identity(&user, folder)?;
    let insecure = cluster.insecure_skip_tls_verify == Some(true);
    // As in client-go: these settings decide about a server without a scheme, and a certificate takes precedence over a plug-in.
    let scheme = if ca.is_some() || identity.is_some() || insecure { "https" } else { "http" };
    let server = Server::parse(&cluster.server, scheme)
        .map_err(|why| format!("{}: {why}", shown_server(&cluster.server)))?;
    user.exec = user.exec.filter(|_| identity.is_none());
    let info = || cluster_info(&server, ca.as_ref(), &cluster);
    let credentials = credentials(user, folder, info)?;
    let stays_here = is_loopback(&server.host) && proxy.is_none();
    if !(server.https || stays_here || matches!(credentials, Credentials::None)) {
        return Err(format!(
            "the user's credentials would travel in the clear, because the server {server} is not https: \
             write https://, or remove the credentials"
        ));
    }
    Ok(Config {
        server,
        tls: TlsFiles {
            ca,
            identity,
            server_name: cluster.tls_server_name.filter(|name| !name.is_empty()),
            insecure,
        },
        credentials,
        proxy: proxy.transpose()?,
    })
}

/// An invalid server for the error text. A URL may contain a password before an `@` or a token in its query; in a
/// malformed URL their position is unknown.
fn shown_server(url: &str) -> String {
    if url.contains(['@', '?', '#']) { "server".to_owned() } else { format!("server {url:?}") }
}

fn find<T>(list: Option<Vec<Named<T>>>, kind: &str, name: &str) -> Result<T, String> {
    let entry = list.into_iter().flatten().find(|entry| entry.name == name);
    entry.and_then(|entry| entry.content).ok_or_else(|| format!("there is no {kind} named {name:?}"))
}

/// Data takes precedence over the file.
fn pem(what: &str, file: Option<&PathBuf>, data: Option<&str>, folder: &Path) -> Result<Option<Pem>, String> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        // As Go's decoder: ignores only ends of lines.
        let text: Vec<u8> = data.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
        let decoded = STANDARD.decode(text).map_err(|_| format!("{what}-data is not base64"))?;
        return Ok(Some(Pem::Data(decoded)));
    }
    Ok(file.filter(|file| !file.as_os_str().is_empty()).map(|file| Pem::File(folder.join(file))))
}

fn identity(user: &User, folder: &Path) -> Result<Option<(Pem, Pem)>, String> {
    let (file, data) = (&user.client_certificate, &user.client_certificate_data);
    let chain = pem("client-certificate", file.as_ref(), data.as_deref(), folder)?;
    let key = pem("client-key", user.client_key.as_ref(), user.client_key_data.as_deref(), folder)?;
    match (chain, key) {
        (Some(chain), Some(key)) => Ok(Some((chain, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err("the user has a client-certificate and no client-key: give both".into()),
        (None, Some(_)) => Err("the user has a client-key and no client-certificate: give both".into()),
    }
}

/// The cluster info for a plug-in with `provideClusterInfo`. Source: client-go `rest.ConfigToExecCluster`.
fn cluster_info(server: &Server, ca: Option<&Pem>, cluster: &Cluster) -> Result<Value, String> {
    let mut info = serde_json::json!({ "server": server.to_string() });
    if let Some(ca) = ca {
        info["certificate-authority-data"] = STANDARD.encode(ca.read("certificate-authority")?).into();
    }
    for (key, text) in [("tls-server-name", &cluster.tls_server_name), ("proxy-url", &cluster.proxy_url)] {
        if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
            info[key] = text.into();
        }
    }
    let mut extensions = cluster.extensions.iter().flatten();
    if let Some(own) = extensions.find(|extension| extension.name == "client.authentication.k8s.io/exec") {
        info["config"] = own.content.clone().into();
    }
    if cluster.insecure_skip_tls_verify == Some(true) {
        info["insecure-skip-tls-verify"] = true.into();
    }
    Ok(info)
}

fn credentials(
    user: User,
    folder: &Path,
    info: impl FnOnce() -> Result<Value, String>,
) -> Result<Credentials, String> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    if user.auth_provider.is_some() {
        return Err("auth-provider was removed from Kubernetes: use exec instead".into());
    }
    if given(user.username).is_some() {
        return Err("username was removed from Kubernetes: use a token or a client certificate".into());
    }
    if given(user.impersonated).is_some() {
        return Err("as is not supported: give credentials of the user to act as".into());
    }
    // As in client-go: the file takes precedence over the token, and both over a plug-in.
    if let Some(file) = user.token_file.filter(|file| !file.as_os_str().is_empty()) {
        return Ok(Credentials::TokenFile(folder.join(file)));
    }
    if let Some(token) = given(user.token) {
        let header = bearer(token.trim()).map_err(|_| "token has invalid characters".to_owned());
        return header.map(Credentials::Token);
    }
    if let Some(plugin) = user.exec {
        return Ok(Credentials::Exec(Exec::new(plugin, folder, info)?));
    }
    Ok(Credentials::None)
}

#[cfg(test)]
#[path = "kubeconfig_tests.rs"]
mod tests;
