//! A child process with the lines of its output, its signals and its end. It never outlives its handle.

use std::collections::VecDeque;
use std::future::ready;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::netns::Place;
use crate::usage::Usage;
use crate::wait::{DEADLINE, until};

/// Environment variables that would change a program's connections or identity; removed for every process.
const CLEARED: [&str; 8] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "PROXY_SERVER_ID",
    "PROXY_AGENT_ID",
];

/// Number of log lines that an error message quotes.
const QUOTED: usize = 15;

/// Number of log lines that are kept; the oldest are dropped first.
const KEPT: usize = 20_000;

/// A command line, kept to start the process again.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// A name for messages.
    pub name: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Additional environment variables.
    pub env: Vec<(String, String)>,
}

/// A running (or ended) child process.
#[derive(Debug)]
pub struct Process {
    recipe: Recipe,
    child: Child,
    log: Arc<Mutex<Log>>,
}

/// The output of a process.
#[derive(Debug, Default)]
struct Log {
    lines: VecDeque<String>,
    /// The place of the first panic of a Rust program.
    panic: Option<String>,
    /// Number of streams that are still being read.
    open: usize,
}

impl Log {
    fn push(&mut self, line: String) {
        if self.panic.is_none() && line.contains(" panicked at ") {
            self.panic = Some(line.clone());
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

impl Process {
    /// Starts the program and collects its standard output and standard error.
    pub fn spawn(recipe: Recipe) -> Result<Self> {
        let mut command = bound(&recipe.program);
        command.args(&recipe.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in CLEARED {
            command.env_remove(name);
        }
        command.envs(recipe.env.iter().map(|(key, value)| (key, value)));
        let mut child =
            spawn(command).with_context(|| format!("cannot start {}", recipe.program.display()))?;
        let log = Arc::<Mutex<Log>>::default();
        if let Some(stream) = child.stderr.take() {
            collect(stream, log.clone());
        }
        if let Some(stream) = child.stdout.take() {
            collect(stream, log.clone());
        }
        Ok(Self { recipe, child, log })
    }

    /// Kills the process and starts it again with the same arguments.
    pub fn restart(&mut self) -> Result<()> {
        *self = Self::spawn(self.recipe.clone())?;
        Ok(())
    }

    /// Like [`Process::restart`], as another program.
    pub fn restart_as(&mut self, program: &Path) -> Result<()> {
        self.recipe.program = program.to_path_buf();
        self.restart()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The present resource usage of the process.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.pid())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no such process id")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.recipe.name))
    }

    /// Kills the process and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The exit status, if the process has ended and its last lines are here.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten().filter(|_| self.log.lock().open == 0)
    }

    /// Waits for the process to end by itself.
    pub async fn exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.recipe.name);
        let ended = until(&what, limit, || ready(self.ended())).await;
        ended.map_err(|error| self.explain(&error))
    }

    /// The lines so far, at most the latest 20,000.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().lines.iter().cloned().collect()
    }

    /// Whether a line so far contains `text`.
    pub fn said(&self, text: &str) -> bool {
        self.log.lock().lines.iter().any(|line| line.contains(text))
    }

    /// Waits until a line of the log contains `text`.
    pub async fn wait_said(&self, text: &str) -> Result<()> {
        let said = until(text, DEADLINE, || async { self.said(text).then_some(()) });
        said.await.map_err(|error| self.explain(&error))
    }

    /// The error with the last lines of this process's log.
    pub fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        let lines = &self.log.lock().lines;
        let tail =
            lines.iter().skip(lines.len().saturating_sub(QUOTED)).cloned().collect::<Vec<_>>().join("\n  ");
        anyhow::anyhow!("{error:#}; the last lines of {}:\n  {tail}", self.recipe.name)
    }

    /// Takes note of the program's panic, which the test expects, so that it does not fail the test.
    pub fn forgive_panic(&self) -> Option<String> {
        self.log.lock().panic.take()
    }

    /// Fails with the log if the process has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.ended() {
            bail!(self.explain(&anyhow::anyhow!("{} ended with {status}", self.recipe.name)));
        }
        Ok(())
    }
}

impl Drop for Process {
    /// # Panics
    /// If a task of the program panicked; otherwise only one connection would show the panic.
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(place) = self.log.lock().panic.take()
            && !std::thread::panicking()
        {
            panic!("a task of {} panicked: {place}", self.recipe.name);
        }
    }
}

/// Runs a command to its end, within twice [`DEADLINE`]. A pipe holds what it prints: 64 KiB.
///
/// # Errors
/// It cannot start, or does not end.
pub async fn output(command: &mut Command) -> Result<Output> {
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let ended = until("the end of a command", 2 * DEADLINE, || ready(child.try_wait().ok().flatten())).await;
    if ended.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    ended.map(|_| output)
}

/// Raises this process's descriptor limit to its hard limit, which it returns: this process holds one or both ends of a test's
/// connections.
pub fn raise_descriptor_limit() -> usize {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
        crate::figures::say("the limit of descriptors stays as it is", error);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// A command that the kernel kills when this process ends for any reason. Needs util-linux's `setpriv`, which then becomes the
/// program under the same process id; without it the command runs unbound.
pub fn bound(program: &Path) -> Command {
    static SETPRIV: OnceLock<bool> = OnceLock::new();
    let installed = *SETPRIV.get_or_init(|| {
        let asked =
            Command::new("setpriv").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    });
    if !installed {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Starts a command on one thread that starts all commands and never ends, because the kernel kills a child when the thread that
/// started it ends. The child still runs in the caller's network namespace.
pub fn spawn(command: Command) -> std::io::Result<Child> {
    type Order = (Command, Place, Sender<std::io::Result<Child>>);
    static ORDERS: OnceLock<Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, place, answer) in orders {
                // The caller waits for the answer.
                let _ = answer.send(place.and_in(|| command.spawn()));
            }
        });
        sender
    });
    let (answer, child) = channel();
    let gone = |_| std::io::Error::other("the thread that starts processes has gone");
    orders
        .send((command, Place::here()?, answer))
        .map_err(|_| std::io::Error::other("no thread starts processes"))?;
    child.recv().map_err(gone)?
}

/// Reads lines on a separate thread until the process closes the stream: blocking reads are the cheapest.
fn collect(stream: impl std::io::Read + Send + 'static, log: Arc<Mutex<Log>>) {
    log.lock().open += 1;
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            log.lock().push(String::from_utf8_lossy(&line).into_owned());
        }
        log.lock().open -= 1;
    });
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::{Process, Recipe, spawn};
    use crate::wait::{DEADLINE, until};

    /// Set for the second copy of this test, which is killed.
    const COPY: &str = "KONNECTIVITY_KILLED_HARNESS";

    /// Whether the process is gone, or has ended and is not reaped yet.
    fn ended(pid: &str) -> bool {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
            || !Path::new("/proc").join(pid).exists()
    }

    /// A shell that runs a script.
    fn shell(script: &str) -> Process {
        let args = vec!["-c".into(), script.into()];
        Process::spawn(Recipe { name: "server".into(), program: "sh".into(), args, env: Vec::new() }).unwrap()
    }

    #[tokio::test]
    async fn a_program_in_which_a_task_panicked_fails_its_test() {
        let process = shell("echo \"thread 'worker' (7) panicked at src/lib.rs:1:2:\" >&2; exec sleep 600");
        process.wait_said("panicked").await.unwrap();
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(process))).unwrap_err();
        let told = told.downcast_ref::<String>().unwrap();
        assert!(told.starts_with("a task of server panicked: thread 'worker'"), "{told}");
    }

    #[tokio::test]
    async fn last_lines_are_available_once_a_program_has_ended() {
        let mut process = shell("{ sleep 0.2; echo last >&2; } & exit 0");
        assert!(process.exit(DEADLINE).await.unwrap().success());
        assert!(process.said("last"));
    }

    #[tokio::test]
    async fn children_end_with_a_harness_that_is_killed() {
        if std::env::var_os(COPY).is_some() {
            let program = "sleep".into();
            let recipe = Recipe { name: "sleep".into(), program, args: vec!["600".into()], env: Vec::new() };
            let child = Process::spawn(recipe).unwrap();
            eprintln!("child {}", child.pid());
            return std::future::pending().await;
        }
        let mut copy = Command::new(std::env::current_exe().unwrap());
        copy.args(["--exact", "process::tests::children_end_with_a_harness_that_is_killed", "--nocapture"]);
        copy.env(COPY, "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut copy = spawn(copy).unwrap();
        let mut lines = BufReader::new(copy.stderr.take().unwrap()).lines();
        let pid = lines.find_map(|line| line.unwrap().strip_prefix("child ").map(str::to_owned)).unwrap();
        // The kernel knows the signal only after `setpriv` has become the program.
        let comm = Path::new("/proc").join(&pid).join("comm");
        let told =
            || async { std::fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n").then_some(()) };
        until("the child's program", DEADLINE, told).await.unwrap();
        copy.kill().unwrap();
        copy.wait().unwrap();
        let gone = until("the child's end", DEADLINE, || async { ended(&pid).then_some(()) });
        gone.await.unwrap();
    }
}
