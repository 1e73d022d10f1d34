//! Credentials from a plug-in: a program that prints an ExecCredential (`client.authentication.k8s.io`, v1 and
//! v1beta1). Run when credentials are first needed, when they expire, and when the API refuses them; one at a time.
//!
//! A run goes on when those who wait for it leave: it may take longer than a call, and the next one finds what it
//! brought.
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

use super::credentials::{Shown, bearer};
use super::tls::Pem;
use crate::time::{Clock, Moment};

/// How long the program may take, whatever the patience of who needs it.
const RUN_LIMIT: Duration = Duration::from_secs(30);
/// The most that it may print, in bytes.
const OUTPUT_LIMIT: u64 = 1 << 20;
/// Credentials are renewed this long before they expire.
const MARGIN: Duration = Duration::from_secs(10);
/// After a refusal by the API the program is not run again for this long.
const PAUSE: Duration = Duration::from_secs(5);
/// What of the program's complaints is quoted, in characters.
const QUOTED: usize = 200;

/// The kubeconfig's section.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plugin {
    #[serde(default)]
    api_version: String,
    command: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    install_hint: Option<String>,
    #[serde(default)]
    interactive_mode: Option<String>,
    #[serde(default)]
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
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    client_certificate_data: Option<String>,
    #[serde(default)]
    client_key_data: Option<String>,
    #[serde(default)]
    expiration_timestamp: Option<String>,
}

/// Why the plug-in brought nothing. No text holds what it printed to its standard output.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExecError {
    /// It cannot be started.
    #[error("plug-in {command:?} cannot be started: {source}{hint}")]
    Start {
        /// The program.
        command: String,
        /// Why.
        source: Arc<std::io::Error>,
        /// The kubeconfig's installHint, behind a semicolon.
        hint: String,
    },
    /// It took too long, failed, or printed too much.
    #[error("plug-in {command:?} {why}")]
    Failed {
        /// The program.
        command: String,
        /// What happened.
        why: String,
    },
    /// It printed no usable ExecCredential.
    #[error("plug-in {command:?} printed no usable ExecCredential: {why}")]
    Output {
        /// The program.
        command: String,
        /// What is wrong.
        why: &'static str,
    },
}

/// A plug-in with its last word. Clones share both.
#[derive(Clone)]
pub(crate) struct Exec(Arc<Shared>);

struct Shared {
    program: Program,
    last: Mutex<Last>,
}

/// What is run, and what it is told.
struct Program {
    command: String,
    path: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    info: String,
    hint: Option<String>,
    api_version: String,
}

/// What a run brought; none while it goes on.
type Outcome = Option<Result<Shown, ExecError>>;

#[derive(Default)]
struct Last {
    shown: Option<(Shown, Option<Moment>)>,
    /// When the last run ended.
    ran: Option<Instant>,
    /// The run that is under way, unless its sender is gone.
    run: Option<watch::Receiver<Outcome>>,
}

impl Exec {
    /// Checks the section. `folder` is the kubeconfig's, `cluster` what the plug-in may be told of the cluster.
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
        // As client-go: a bare name is looked up in PATH, anything with a slash counts from the file's folder.
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

    /// The credentials of now; runs the program if the last ones are gone or about to expire.
    pub(super) async fn show(&self) -> Result<Shown, ExecError> {
        let mut outcome = {
            let mut last = self.0.last.lock();
            let soon = Clock::system().now().plus(MARGIN);
            if let Some((shown, expires)) = &last.shown
                && expires.is_none_or(|expires| expires > soon)
            {
                return Ok(shown.clone());
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
        // A run that ended without a word has panicked, or its runtime ends.
        told.ok().flatten().unwrap_or_else(|| Err(self.0.program.failed("was not run to its end".to_owned())))
    }

    /// Forgets the last credentials, unless they are fresh; whether it did.
    pub(super) fn forget(&self) -> bool {
        let mut last = self.0.last.lock();
        if last.ran.is_some_and(|ran| ran.elapsed() < PAUSE) {
            return false;
        }
        last.shown.take().is_some()
    }

    /// Runs the program and keeps what it brings. Bounded in time.
    async fn run(self, tell: watch::Sender<Outcome>) {
        let program = &self.0.program;
        let brought = program.run().await.and_then(|printed| program.read(&printed));
        let mut last = self.0.last.lock();
        last.ran = Some(Instant::now());
        let outcome = brought.map(|(shown, expires)| {
            last.shown = Some((shown.clone(), expires));
            shown
        });
        last.run = None;
        match &outcome {
            Err(error) if tell.is_closed() => {
                tracing::warn!(%error, "A plug-in brought no credentials, and took longer than who asked for them");
            }
            _ => {
                tell.send_replace(Some(outcome));
            }
        }
    }
}

impl Program {
    async fn run(&self) -> Result<Vec<u8>, ExecError> {
        let mut command = Command::new(&self.path);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env("KUBERNETES_EXEC_INFO", &self.info);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let hint = self.hint.as_ref().map(|hint| format!("; {}", hint.trim().replace(['\n', '\r'], " ")));
        let mut child = command.spawn().map_err(|source| ExecError::Start {
            command: self.command.clone(),
            source: Arc::new(source),
            hint: hint.unwrap_or_default(),
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
            Ok(status) => status.map_err(|error| self.failed(error.to_string()))?,
            Err(_) => return Err(self.failed(format!("did not end within {} s", RUN_LIMIT.as_secs()))),
        };
        if status.success() {
            return Ok(printed);
        }
        let complaints = String::from_utf8_lossy(&complaints);
        let quoted: String = complaints.trim().chars().take(QUOTED).flat_map(char::escape_debug).collect();
        Err(self.failed(format!("failed ({status}): {quoted}")))
    }

    fn failed(&self, why: String) -> ExecError {
        ExecError::Failed { command: self.command.clone(), why }
    }

    fn read(&self, printed: &[u8]) -> Result<(Shown, Option<Moment>), ExecError> {
        let output = |why| ExecError::Output { command: self.command.clone(), why };
        let credential: Credential =
            serde_json::from_slice(printed).map_err(|_| output("it is no such JSON"))?;
        if credential.api_version != self.api_version {
            return Err(output("its apiVersion is not the kubeconfig's"));
        }
        let status = credential.status.ok_or(output("it has no status"))?;
        let header =
            status.token.filter(|token| !token.is_empty()).map(|token| bearer(token.trim())).transpose();
        let header = header.map_err(|_| output("its token holds characters that no token has"))?;
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
            expires.map(|text| Moment::parse(text).ok_or(output("its expirationTimestamp is no time")));
        Ok((Shown { header, identity }, expires.transpose()?))
    }
}

async fn read_all(stream: Option<impl tokio::io::AsyncRead + Unpin>, into: &mut Vec<u8>) {
    if let Some(stream) = stream {
        // What cannot be read is missing from the output, which is then found unusable.
        let _ = stream.take(OUTPUT_LIMIT).read_to_end(into).await;
    }
}

impl fmt::Display for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.program.command)
    }
}
