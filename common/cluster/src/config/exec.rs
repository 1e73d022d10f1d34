//! Credentials from a plug-in: a program that prints an ExecCredential (`client.authentication.k8s.io`, v1 and
//! v1beta1). It runs when credentials are first needed, when they expire, and when the API refuses them; one run at a
//! time.
//!
//! A run continues if its callers give up: it may take longer than a call, and the next call uses its result.
//!
//! The program gets no terminal: `interactiveMode: Always` is refused at the start.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::credentials::{CredentialError, PresentedCredentials, bearer};
use super::tls::Pem;
use crate::time::{Clock, Moment};

/// The time-out of the program, independent of its callers' time-outs.
const RUN_LIMIT: Duration = Duration::from_secs(30);
/// The longest output, in bytes.
const OUTPUT_LIMIT: u64 = 1 << 20;
/// Credentials are renewed this long before they expire.
const MARGIN: Duration = Duration::from_secs(10);
/// After the API refused the credentials, the program does not run again within this time after its last run.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest quote of the program's standard error, in characters.
const QUOTED: usize = 200;

/// The `exec` section of the kubeconfig.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plugin {
    #[serde(default)]
    api_version: String,
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    install_hint: Option<String>,
    interactive_mode: Option<String>,
    provide_cluster_info: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Credential {
    #[serde(default)]
    api_version: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

/// A plug-in with its last result. Clones share both.
#[derive(Clone)]
pub(crate) struct Exec(Arc<Shared>);

struct Shared {
    program: Program,
    last: Mutex<Last>,
}

/// The program, its arguments and its environment.
struct Program {
    command: String,
    path: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    info: String,
    hint: Option<String>,
    api_version: String,
}

/// The result of a run; `None` while it runs.
type Outcome = Option<Result<PresentedCredentials, CredentialError>>;

#[derive(Default)]
struct Last {
    presented: Option<(PresentedCredentials, Option<Moment>)>,
    /// When the last run ended.
    ran: Option<Instant>,
    /// The current run, unless its sender is gone.
    run: Option<watch::Receiver<Outcome>>,
}

impl Exec {
    /// Checks the section. `folder` is the kubeconfig's, `cluster` the cluster info for the plug-in.
    pub(super) fn new(plugin: Plugin, folder: &Path, cluster: Value) -> Result<Self, String> {
        let known = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
        if !known.contains(&plugin.api_version.as_str()) {
            return Err(format!(
                "exec: apiVersion {:?} is neither {} nor {}",
                plugin.api_version, known[0], known[1]
            ));
        }
        if plugin.interactive_mode.as_deref() == Some("Always") {
            return Err("exec: interactiveMode Always needs a terminal, and there is none".into());
        }
        let mut spec = serde_json::json!({ "interactive": false });
        if plugin.provide_cluster_info == Some(true) {
            spec["cluster"] = cluster;
        }
        let info =
            serde_json::json!({ "kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec });
        // As client-go: a bare name is looked up in PATH, a path with a slash is relative to the file's folder.
        let bare = !plugin.command.contains('/');
        let path = if bare { PathBuf::from(&plugin.command) } else { folder.join(&plugin.command) };
        let pairs = plugin.env.into_iter().flatten().map(|variable| (variable.name, variable.value));
        let program = Program {
            path,
            command: plugin.command,
            args: plugin.args.unwrap_or_default(),
            env: pairs.collect(),
            info: info.to_string(),
            hint: plugin.install_hint,
            api_version: plugin.api_version,
        };
        Ok(Self(Arc::new(Shared { program, last: Mutex::default() })))
    }

    /// The current credentials; runs the program if there are none or they expire soon.
    pub(super) async fn show(&self) -> Result<PresentedCredentials, CredentialError> {
        let mut outcome = {
            let mut last = self.0.last.lock();
            let soon = Clock::system().now().plus(MARGIN);
            if let Some((presented, expires)) = &last.presented
                && expires.is_none_or(|expires| expires > soon)
            {
                return Ok(presented.clone());
            }
            match &last.run {
                Some(run) if run.has_changed().is_ok() => run.clone(),
                _ => {
                    let (tell, outcome) = watch::channel(None);
                    last.run = Some(outcome.clone());
                    tokio::spawn(self.clone().run(tell));
                    outcome
                }
            }
        };
        let told = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        // A run without a result has panicked, or its runtime has ended.
        told.ok().flatten().unwrap_or_else(|| Err(self.0.program.failed("was not run to its end")))
    }

    /// Drops the last credentials, unless they are fresh. Returns whether it did.
    pub(super) fn invalidate(&self) -> bool {
        let mut last = self.0.last.lock();
        if last.ran.is_some_and(|ran| ran.elapsed() < PAUSE) {
            return false;
        }
        last.presented.take().is_some()
    }

    /// Runs the program and keeps its result. Has a time-out.
    async fn run(self, tell: watch::Sender<Outcome>) {
        let program = &self.0.program;
        let brought = program.run().await.and_then(|printed| program.read(&printed));
        let mut last = self.0.last.lock();
        last.ran = Some(Instant::now());
        let outcome = brought.map(|(presented, expires)| {
            last.presented = Some((presented.clone(), expires));
            presented
        });
        last.run = None;
        match &outcome {
            Err(error) if tell.is_closed() => {
                tracing::warn!(%error, "plug-in returned no credentials, after its callers timed out");
            }
            _ => {
                tell.send_replace(Some(outcome));
            }
        }
    }
}

impl Program {
    async fn run(&self) -> Result<Vec<u8>, CredentialError> {
        let mut command = Command::new(&self.path);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env("KUBERNETES_EXEC_INFO", &self.info);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| {
            let hint = self.hint.as_ref().map(|hint| format!("; {}", hint.trim().replace(['\n', '\r'], " ")));
            self.failed(&format!("cannot be started: {error}{}", hint.unwrap_or_default()))
        })?;
        let (mut printed, mut complaints) = (Vec::new(), Vec::new());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let finished = async {
            let read_out = read_all(stdout, &mut printed);
            let read_err = read_all(stderr, &mut complaints);
            let ((), ()) = tokio::join!(read_out, read_err);
            child.wait().await
        };
        let status = match timeout(RUN_LIMIT, finished).await {
            Ok(status) => status.map_err(|error| self.failed(&error.to_string()))?,
            Err(_) => return Err(self.failed(&format!("did not end within {} s", RUN_LIMIT.as_secs()))),
        };
        if status.success() {
            return Ok(printed);
        }
        let complaints = String::from_utf8_lossy(&complaints);
        let quoted: String = complaints.trim().chars().take(QUOTED).flat_map(char::escape_debug).collect();
        Err(self.failed(&format!("failed ({status}): {quoted}")))
    }

    /// Why the plug-in returned no credentials. No text contains its standard output.
    fn failed(&self, why: &str) -> CredentialError {
        CredentialError(format!("plug-in {:?} {why}", self.command))
    }

    fn read(&self, printed: &[u8]) -> Result<(PresentedCredentials, Option<Moment>), CredentialError> {
        let output = |why: &str| self.failed(&format!("printed no usable ExecCredential: {why}"));
        let credential: Credential =
            serde_json::from_slice(printed).map_err(|_| output("it is no such JSON"))?;
        if credential.api_version != self.api_version {
            return Err(output("its apiVersion is not the kubeconfig's"));
        }
        let status = credential.status.ok_or(output("it has no status"))?;
        let header =
            status.token.filter(|token| !token.is_empty()).map(|token| bearer(token.trim())).transpose();
        let header = header.map_err(|_| output("its token has invalid characters"))?;
        let identity = match (status.client_certificate_data, status.client_key_data) {
            (Some(chain), Some(key)) => Some((Pem::Data(chain.into_bytes()), Pem::Data(key.into_bytes()))),
            (None, None) => None,
            _ => return Err(output("clientCertificateData and clientKeyData come together")),
        };
        if header.is_none() && identity.is_none() {
            return Err(output("it has neither a token nor a certificate"));
        }
        let expires = status.expiration_timestamp.as_deref();
        let expires =
            expires.map(|text| Moment::parse(text).ok_or(output("its expirationTimestamp is not a time")));
        Ok((PresentedCredentials { header, identity }, expires.transpose()?))
    }
}

async fn read_all(stream: Option<impl tokio::io::AsyncRead + Unpin>, into: &mut Vec<u8>) {
    if let Some(stream) = stream {
        // Unread output is missing, and the parser then rejects it.
        let _ = stream.take(OUTPUT_LIMIT).read_to_end(into).await;
    }
}

impl fmt::Display for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.program.command)
    }
}
