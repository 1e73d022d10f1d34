//! `proxy-server status`, `probe`, `top` and `verbosity`, and those of the proxy-agent: commands that ask the running process
//! by its admin port, for images without a shell.
//!
//! A command line whose first word is no flag is a command; every other one starts the program, as in Go. The commands read
//! no configuration of the running process except from its `/statusz`. docs/commands.md describes them.

mod admin;
pub mod probe;
mod status;
pub mod table;
mod top;
mod verbosity;

use std::ffi::OsString;
use std::process::ExitCode;

use flags::{Exit, FlagSet, Given, Group, Positional, closest};

use self::admin::AdminFlags;

/// A program that has commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `proxy-server`.
    Server,
    /// `proxy-agent`.
    Agent,
}

/// What the help of a program says after its usage.
pub const SERVER_USAGE: &str =
    "\nor:    proxy-server status|probe|top|verbosity [flags]  (asks the running server)";
/// The same for the agent.
pub const AGENT_USAGE: &str = "\nor:    proxy-agent status|top|verbosity [flags]  (asks the running agent)";

/// The exit code of a command that could not ask, or whose command line is wrong.
const NOT_ASKED: u8 = 2;

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Server => "proxy-server",
            Program::Agent => "proxy-agent",
        }
    }

    fn commands(self) -> &'static [&'static str] {
        match self {
            Program::Server => &["status", "probe", "top", "verbosity"],
            Program::Agent => &["status", "top", "verbosity"],
        }
    }
}

/// Runs the command that the line, which starts with the program's name, has as its first word. `None` without one: the
/// line starts the program. A first word that is almost a command is refused; any other one is ignored with a warning, as all
/// such words are by Go's programs.
pub fn main(program: Program, line: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let line: Vec<OsString> = line.collect();
    let word = line.get(1)?.to_string_lossy().into_owned();
    if word.is_empty() || word.starts_with('-') {
        return None;
    }
    let exit = match program.commands().iter().find(|command| **command == word) {
        Some(command) => run(program, command, line).unwrap_or_else(|exit| exit),
        None => mistyped(program, &word)?,
    };
    Some(exit.leave())
}

fn run(program: Program, command: &str, line: Vec<OsString>) -> Result<Exit, Exit> {
    block_on(async {
        match command {
            "probe" => probe::command::run(line).await,
            "top" => top::run(program, line).await,
            "verbosity" => verbosity::run(program, line).await,
            _ => status::run(program, line).await,
        }
    })?
}

/// Does the work of a command on this thread.
///
/// # Errors
/// The runtime cannot be started.
pub fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| not_asked(&format!("cannot start the runtime: {error}")))?;
    let done = runtime.block_on(work);
    // A lookup of a name on a blocking thread may take longer than the work may.
    runtime.shutdown_background();
    Ok(done)
}

/// The end of a command whose command line is wrong; that of `--help` stays.
pub fn wrong(exit: Exit) -> Exit {
    if exit.code == 0 { exit } else { Exit { code: NOT_ASKED, ..exit } }
}

fn mistyped(program: Program, word: &str) -> Option<Exit> {
    let (name, commands) = (program.name(), program.commands());
    let meant = closest(word, Program::Server.commands().iter().copied())?;
    let meant = if commands.contains(&meant) { format!("did you mean {meant}? ") } else { String::new() };
    let all = commands.join(", ");
    Some(Exit::refuse(&format!(
        "unknown command {word:?}: {meant}{name} knows {all}, and flags without a command"
    )))
}

/// The end of a command that cannot do its work, with one line.
fn not_asked(line: &str) -> Exit {
    Exit { code: NOT_ASKED, ..Exit::refuse(line) }
}

/// Reads the line of a command: its flags, and its words after the command's name, at most `most`. `words` is their usage.
fn read<G: Group>(
    (program, command, about): (Program, &str, &'static str),
    (words, most): (&'static str, usize),
    line: Vec<OsString>,
) -> Result<(G, AdminFlags, Vec<String>), Exit> {
    let name = format!("{} {command}", program.name());
    let set = FlagSet::new(name, env!("CARGO_PKG_VERSION"), about).usage(words).group::<G>();
    let given: Given = set.group::<AdminFlags>().read(line.into_iter().skip(1)).map_err(wrong)?;
    if let Some(Positional { word, after }) = given.positional.get(most) {
        return Err(not_asked(&match after {
            Some(flag) => format!("unexpected {word:?} after --{flag}: did you mean --{flag}={word}?"),
            None => format!("unexpected {word:?}: usage: {} {command} [flags]{words}", program.name()),
        }));
    }
    let parsed = given.group().and_then(|own| Ok((own, given.group()?)));
    let (own, admin) = parsed.map_err(|error| wrong(error.into()))?;
    Ok((own, admin, given.positional.into_iter().map(|positional| positional.word).collect()))
}
