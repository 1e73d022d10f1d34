//! Signals that leave a process running or end it, as in the Go programs.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::netns::if_possible;
use e2e::pair::Setup;
use e2e::process::{Process, Signal};
use e2e::program::{Program, script};
use e2e::wait::{DEADLINE, until};
use rustix::process::{Pid, kill_process};

#[tokio::test]
async fn user_signals_do_nothing() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    for (signal, name) in [(Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")] {
        for process in [&pair.server().process, &pair.agent().process] {
            process.signal(signal)?;
            process.wait_said(name).await?;
        }
    }
    for signal in
        [Signal::XFSZ, Signal::XCPU, Signal::IO, Signal::POWER, Signal::ALARM, Signal::VTALARM, Signal::PROF]
    {
        pair.server().process.signal(signal)?;
        pair.agent().process.signal(signal)?;
    }
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    pair.server_mut().process.check_alive()?;
    pair.agent_mut().process.check_alive()
}

/// The default action of SIGQUIT writes a core dump, which would contain private keys.
#[tokio::test]
async fn quit_ends_a_process_without_a_core_dump() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    for process in [&mut pair.agents[0].process, &mut pair.servers[0].process] {
        process.signal(Signal::QUIT)?;
        let status = process.exit(DEADLINE).await?;
        ensure!(status.code() == Some(2) && !status.core_dumped(), "{status}");
    }
    Ok(())
}

/// For the first process of a container the kernel ignores signals without a handler.
#[tokio::test]
async fn hangup_and_quit_end_the_first_process_of_a_container() -> Result<()> {
    let possible = Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    let possible = match possible {
        Ok(status) if status.success() => Ok(()),
        failed => Err(anyhow::anyhow!("unshare: {failed:?}")),
    };
    if if_possible("SKIPPED: no process namespace can be made here", possible)?.is_none() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (server, agent) = (Program::Server.path()?, Program::Agent.path()?);
    let programs = (contained(folder.path(), &server)?, contained(folder.path(), &agent)?);
    for signal in [Signal::HUP, Signal::QUIT] {
        let mut pair = Setup::grpc().programs(programs.0.clone(), programs.1.clone()).start().await?;
        let server = &mut pair.servers[0].process;
        for process in [&mut pair.agents[0].process, server] {
            let first = child(process).await?;
            kill_process(first, Signal::USR1)?;
            process.wait_said("SIGUSR1").await?;
            kill_process(first, signal)?;
            let status = process.exit(DEADLINE).await?;
            ensure!(status.code() == Some(2), "{signal:?}: {status}");
        }
    }
    Ok(())
}

/// A script that runs the program as the first process of a namespace.
fn contained(folder: &Path, program: &Path) -> Result<PathBuf> {
    let text = format!("exec unshare --pid --fork --kill-child '{}' \"$@\"", program.display());
    script(folder, program.file_name().context("a program's name")?, &text)
}

/// The only child of `unshare`.
async fn child(process: &Process) -> Result<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", process.pid());
    until("the first process", DEADLINE, || async {
        let children = std::fs::read_to_string(&path).ok()?;
        Pid::from_raw(children.trim().parse().ok()?)
    })
    .await
}
