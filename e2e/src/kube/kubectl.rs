//! The real kubectl, called as an operator would call it.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::payload::{Digest, Digester};
use crate::process::{Process, Recipe, bound, spawn};
use crate::wait::within_limit;

/// Time limit of one command.
const LIMIT: Duration = Duration::from_secs(120);

/// kubectl for one user of one kube-apiserver.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
    env: Vec<(String, String)>,
}

/// The result of a command.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit code; `None` if the command was killed.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Length and checksum of standard output.
    pub fn digest(&self) -> Digest {
        let mut digester = Digester::default();
        digester.update(&self.stdout);
        digester.finish()
    }
}

impl Kubectl {
    /// kubectl with this kubeconfig, and with caches in `home`.
    pub fn new(program: PathBuf, kubeconfig: PathBuf, home: PathBuf) -> Self {
        Self { program, kubeconfig, home, env: Vec::new() }
    }

    /// The same with an environment variable.
    pub fn with_env(&self, name: &str, value: &str) -> Self {
        let mut this = self.clone();
        this.env.push((name.into(), value.into()));
        this
    }

    /// Program, arguments and environment, for commands that run beside the test.
    pub fn recipe(&self, args: &[&str]) -> Recipe {
        let mut env = self.env.clone();
        env.push(("KUBECONFIG".into(), self.kubeconfig.display().to_string()));
        env.push(("HOME".into(), self.home.display().to_string()));
        Recipe {
            name: format!("kubectl {}", args.join(" ")),
            program: self.program.clone(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env,
        }
    }

    /// A command that is ready to start, with piped streams; it ends with this process.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = bound(&self.program);
        let recipe = self.recipe(args);
        command.args(recipe.args).envs(recipe.env);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a command that runs beside the test, such as `port-forward` and `logs -f`.
    pub fn start(&self, args: &[&str]) -> Result<Process> {
        Process::spawn(self.recipe(args))
    }

    /// Runs a command to its end, whatever its exit code.
    pub async fn run(&self, args: &[&str]) -> Result<Output> {
        self.run_with(args, Vec::new()).await
    }

    /// Runs a command with this standard input to its end.
    pub async fn run_with(&self, args: &[&str], stdin: Vec<u8>) -> Result<Output> {
        let command = self.command(args);
        let name = format!("kubectl {}", args.join(" "));
        // A command that hangs keeps its thread until this process ends and kills it.
        let run = tokio::task::spawn_blocking(move || to_the_end(command, stdin));
        within_limit(&name, LIMIT, run).await??.with_context(|| format!("cannot run {name}"))
    }

    /// Runs a command that must succeed; returns its standard output.
    pub async fn ok(&self, args: &[&str]) -> Result<String> {
        self.ok_with(args, Vec::new()).await
    }

    /// Runs a command with this standard input, which must succeed; returns its standard output.
    pub async fn ok_with(&self, args: &[&str], stdin: Vec<u8>) -> Result<String> {
        let output = self.run_with(args, stdin).await?;
        if output.code != Some(0) {
            bail!("kubectl {} ended with {:?}: {}", args.join(" "), output.code, output.stderr.trim());
        }
        Ok(output.text())
    }

    /// Applies objects (YAML or JSON).
    pub async fn apply(&self, manifest: &str) -> Result<()> {
        let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.ok_with(&args, manifest.into()).await.map(drop)
    }

    /// Applies the status of objects, in place of the missing controllers.
    pub async fn apply_status(&self, manifest: &str) -> Result<()> {
        let args = ["apply", "--server-side", "--force-conflicts", "--subresource=status", "-f", "-"];
        self.ok_with(&args, manifest.into()).await.map(drop)
    }

    /// A token of a service account for this audience, by TokenRequest: valid for one hour.
    pub async fn token(&self, namespace: &str, account: &str, audience: &str) -> Result<String> {
        let (audience, namespace) = (format!("--audience={audience}"), format!("--namespace={namespace}"));
        let token = self.ok(&["create", "token", account, &namespace, &audience]).await?;
        ensure!(token.trim().split('.').count() == 3, "not a token: {token:?}");
        Ok(token.trim().to_owned())
    }
}

fn to_the_end(command: Command, stdin: Vec<u8>) -> Result<Output> {
    let mut child = spawn(command)?;
    let input = child.stdin.take();
    let writing = std::thread::spawn(move || {
        // A program that ends early does not read the rest.
        let _ = input.map(|mut input| input.write_all(&stdin));
    });
    let errors = child.stderr.take();
    let reading = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.map(|mut errors| errors.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut stdout = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_end(&mut stdout)?;
    }
    let status = child.wait()?;
    let stderr = reading.join().unwrap_or_default();
    let _ = writing.join();
    Ok(Output { code: status.code(), stdout, stderr })
}
