//! Credentials from a plug-in: a program that prints an ExecCredential (`client.authentication.k8s.io`, v1 and
//! v1beta1). It runs when credentials are first needed, when they expire, and when the API refuses them; one run at a
//! time.
//!
//! A run continues if its callers give up: it may take longer than a call, and the next call uses its result.
//!
//! The program gets no terminal: `interactiveMode: Always` is refused at the start.

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::credentials::{PresentedCredentials, bearer};
use super::tls::Pem;
use crate::time::{Clock, Moment};

/// The time-out of the program, independent of its callers' time-outs.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);
/// Credentials are renewed this long before they expire.
const RENEW_BEFORE_EXPIRY: Duration = Duration::from_secs(10);
/// After the API refused the credentials, the program does not run again within this time after its last run.
const MIN_RERUN_INTERVAL: Duration = Duration::from_secs(5);
/// The longest quote of the program's standard error, in characters.
const MAX_QUOTED_CHARS: usize = 200;

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

/// A plug-in with its last result.
pub struct Exec(Arc<Program>);

/// The credentials, and when they expire.
type Outcome = Result<(PresentedCredentials, Option<Moment>), String>;

/// The program to run.
struct Program {
    plugin: Plugin,
    path: PathBuf,
    /// The value of `KUBERNETES_EXEC_INFO`.
    info: String,
    /// When the last run ended, and its result. Locked during a run.
    last: Mutex<Option<(Instant, Outcome)>>,
}

impl Exec {
    /// Checks the section. `folder` is the kubeconfig's, `cluster` returns the cluster info for the plug-in.
    pub(super) fn new(
        plugin: Plugin,
        folder: &Path,
        cluster: impl FnOnce() -> Result<Value, String>,
    ) -> Result<Self, String> {
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
            spec["cluster"] = cluster()?;
        }
        let info =
            serde_json::json!({ "kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec });
        // As client-go: a bare name is looked up in PATH, a path with a slash is relative to the file's folder.
        let bare = !plugin.command.contains('/');
        let path = if bare { PathBuf::from(&plugin.command) } else { folder.join(&plugin.command) };
        Ok(Self(Arc::new(Program { plugin, path, info: info.to_string(), last: Mutex::default() })))
    }

    /// The current credentials; runs the program if there are none or they expire soon.
    pub(super) async fn present(&self) -> Result<PresentedCredentials, String> {
        let (program, asked) = (Arc::clone(&self.0), Instant::now());
        // A task, which continues if its caller gives up.
        let run = tokio::spawn(async move {
            let mut last = program.last.lock().await;
            match &*last {
                Some((_, Ok((presented, expires)))) if expires.is_none_or(is_later) => {
                    return Ok(presented.clone());
                }
                // A run that ended while this call waited, whatever its result.
                Some((ended, outcome)) if *ended >= asked => {
                    return outcome.clone().map(|(presented, _)| presented);
                }
                _ => {}
            }
            let outcome = program.run().await.and_then(|printed| program.read(&printed));
            *last = Some((Instant::now(), outcome.clone()));
            outcome.map(|(presented, _)| presented)
        });
        // A run without a result has panicked, or its runtime has ended.
        run.await.unwrap_or_else(|_| Err(self.0.failed("was not run to its end")))
    }

    /// Drops the last credentials, unless they are fresh. Returns whether a second attempt could use others.
    pub(super) fn invalidate(&self) -> bool {
        let Ok(mut last) = self.0.last.try_lock() else { return true };
        let is_old = matches!(&*last, Some((ended, Ok(_))) if ended.elapsed() >= MIN_RERUN_INTERVAL);
        if is_old {
            *last = None;
        }
        is_old
    }
}

/// Whether credentials that expire at this time can still be used.
fn is_later(expires: Moment) -> bool {
    expires > Clock::system().now().plus(RENEW_BEFORE_EXPIRY)
}

impl Program {
    async fn run(&self) -> Result<Vec<u8>, String> {
        let Plugin { args, env, install_hint, .. } = &self.plugin;
        let mut command = Command::new(&self.path);
        command.args(args.iter().flatten());
        command.envs(env.iter().flatten().map(|variable| (&variable.name, &variable.value)));
        command.env("KUBERNETES_EXEC_INFO", &self.info);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).kill_on_drop(true).spawn();
        let group = child.as_ref().ok().and_then(|child| Pid::from_raw(child.id()?.cast_signed()));
        let mut run = pin!(async { child?.wait_with_output().await });
        let Ok(output) = timeout(RUN_TIMEOUT, run.as_mut()).await else {
            // With the children of a shell script. A drop would kill only the shell.
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            return Err(self.failed(&format!("did not end within {} s", RUN_TIMEOUT.as_secs())));
        };
        let output = output.map_err(|error| {
            let hint =
                install_hint.as_ref().map(|hint| format!("; {}", hint.trim().replace(['\n', '\r'], " ")));
            self.failed(&format!("cannot be started: {error}{}", hint.unwrap_or_default()))
        })?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let complaints = String::from_utf8_lossy(&output.stderr);
        let quoted: String =
            complaints.trim().chars().take(MAX_QUOTED_CHARS).flat_map(char::escape_debug).collect();
        Err(self.failed(&format!("failed ({}): {quoted}", output.status)))
    }

    /// Why the plug-in returned no credentials. No text contains its standard output.
    fn failed(&self, why: &str) -> String {
        format!("plug-in {:?} {why}", self.plugin.command)
    }

    fn read(&self, printed: &[u8]) -> Outcome {
        let output = |why: &str| self.failed(&format!("printed no usable ExecCredential: {why}"));
        let credential: Credential =
            serde_json::from_slice(printed).map_err(|_| output("it is no such JSON"))?;
        if credential.api_version != self.plugin.api_version {
            return Err(output("its apiVersion is not the kubeconfig's"));
        }
        let status = credential.status.ok_or(output("it has no status"))?;
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let header = given(status.token).map(|token| bearer(token.trim())).transpose();
        let header = header.map_err(|_| output("its token has invalid characters"))?;
        let identity = match (given(status.client_certificate_data), given(status.client_key_data)) {
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

impl fmt::Display for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.plugin.command)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::sync::mpsc;

    use tokio::task::spawn_blocking;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn run_that_times_out_leaves_no_child_of_a_wrapper() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        let plugin = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", "(echo; sleep 60) > \"$0\"; exit 1", pipe],
        });
        let plugin = serde_json::from_value(plugin).unwrap();
        let exec = Exec::new(plugin, folder.path(), || Ok(Value::Null)).unwrap();
        let run = tokio::spawn(async move { exec.present().await });
        // Waits for the shell's child; the paused clock does not advance in the meantime.
        let mut pipe = spawn_blocking(|| {
            let mut pipe = File::open(pipe).unwrap();
            pipe.read_exact(&mut [0]).unwrap();
            pipe
        })
        .await
        .unwrap();
        let error = run.await.unwrap().err().unwrap();
        assert!(error.contains("did not end within 30 s"), "{error}");
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || end.send(pipe.read_to_end(&mut Vec::new())));
        let read = ended.recv_timeout(Duration::from_secs(20)).expect("no process holds the pipe");
        assert_eq!(read.unwrap(), 0);
    }
}
