//! Locates the programs under test: those in the environment, or the workspace's own, built if necessary.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `proxy-server`, or the file that `PROXY_SERVER` names.
    Server,
    /// `proxy-agent`, or the file that `PROXY_AGENT` names.
    Agent,
}

impl Program {
    fn variable(self) -> &'static str {
        match self {
            Self::Server => "PROXY_SERVER",
            Self::Agent => "PROXY_AGENT",
        }
    }

    fn file_name(self) -> &'static str {
        match self {
            Self::Server => "proxy-server",
            Self::Agent => "proxy-agent",
        }
    }

    /// The program's path. Without an override the workspace's programs are built once per process if cargo runs the tests;
    /// otherwise the program next to the current executable is used.
    pub fn path(self) -> Result<PathBuf> {
        if let Some(path) = std::env::var_os(self.variable()) {
            let path = PathBuf::from(path);
            ensure!(path.is_file(), "{}={} is not a file", self.variable(), path.display());
            return Ok(path);
        }
        static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
        if let Err(error) = BUILT.get_or_init(|| build(true).map_err(|error| format!("{error:#}"))) {
            bail!("{error}");
        }
        let path = profile_folder()?.join(self.file_name());
        ensure!(
            path.is_file(),
            "{} does not exist: build it with `cargo build -p {}`, or name another by {}",
            path.display(),
            self.file_name(),
            self.variable()
        );
        Ok(path)
    }

    /// A script in `folder` that becomes this program with this limit of descriptors.
    pub fn with_descriptors(self, folder: &Path, limit: usize) -> Result<PathBuf> {
        let text = format!("ulimit -n {limit}\nexec '{}' \"$@\"", self.path()?.display());
        script(folder, self.file_name(), &text)
    }
}

/// Writes an executable script. `exec` in it keeps its process id.
pub fn script(folder: &Path, name: impl AsRef<Path>, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

/// Builds both programs in the profile and target folder of the current executable; does nothing outside of cargo.
pub fn build(quiet: bool) -> Result<()> {
    let Some(cargo) = std::env::var_os("CARGO") else { return Ok(()) };
    let folder = profile_folder()?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let target = folder.parent().context("the target folder has no parent")?;
    let mut command = Command::new(cargo);
    command
        .args(["build", "--package", "proxy-server", "--package", "proxy-agent", "--profile", profile])
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
        .arg("--target-dir")
        .arg(target);
    if quiet {
        command.arg("--quiet");
    }
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "building proxy-server and proxy-agent failed: {status}");
    Ok(())
}

/// `target/PROFILE`, for executables in `target/PROFILE` and in `target/PROFILE/deps`.
fn profile_folder() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("the current executable has no path")?;
    let mut folder = exe.parent().context("the current executable has no folder")?;
    if folder.ends_with("deps") {
        folder = folder.parent().context("the deps folder has no parent")?;
    }
    Ok(folder.to_path_buf())
}

/// The first line of a command's table that contains `text`.
pub fn row<'a>(table: &'a str, text: &str) -> Result<&'a str> {
    table.lines().find(|line| line.contains(text)).with_context(|| format!("no {text} in\n{table}"))
}
