//! Starts that must fail, and starts that must succeed.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::frontend::{Mode, Place};
use e2e::pair::{Front, Pair, Setup};
use e2e::process::{Process, Recipe, Signal};
use e2e::program::Program;
use e2e::wait::{DEADLINE, until};
use tokio::time::Instant;

#[tokio::test]
async fn help_exits_with_0_and_an_unknown_flag_with_1() -> Result<()> {
    for program in [Program::Server, Program::Agent] {
        for (flag, code) in [("--help", 0), ("-h", 0), ("--no-such-flag", 1), ("--mode=grpc=x", 1)] {
            let recipe = Recipe {
                name: format!("{program:?} {flag}"),
                program: program.path()?,
                args: vec![flag.into()],
                env: Vec::new(),
            };
            let mut process = Process::spawn(recipe)?;
            let status = process.exit(DEADLINE).await?;
            ensure!(status.code() == Some(code), "{program:?} {flag}: {status}");
        }
    }
    Ok(())
}

/// As cobra prints them: unknown flags, invalid values, and flags that do not go together.
#[test]
fn errors_of_the_command_line_begin_as_gos() -> Result<()> {
    for (program, flag, error) in [
        (Program::Server, "--no-such-flag", "Error: unknown flag: --no-such-flag"),
        (Program::Server, "--server-port=x", "Error: invalid argument \"x\" for \"--server-port\" flag: "),
        (Program::Server, "--uds-name=/x", "Error: --server-port cannot be used with --uds-name"),
        (Program::Agent, "-q", "Error: unknown shorthand flag: 'q' in -q\n"),
        (Program::Agent, "--proxy-server-port", "Error: flag needs an argument: --proxy-server-port\n"),
        (Program::Agent, "--sync-interval=20s", "Error: --sync-interval=20s: "),
    ] {
        let output = std::process::Command::new(program.path()?).arg(flag).output()?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1) && output.stdout.is_empty(), "{flag}: {}", output.status);
        ensure!(said.starts_with(error) && said.lines().count() == 1, "{flag}: {said}");
    }
    Ok(())
}

/// Either program waits for a `preStop` hook if it is started under this name. SIGTERM ends it.
#[tokio::test]
async fn konnectivity_sleep_waits_its_seconds() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for program in [Program::Server, Program::Agent] {
        let link = folder.path().join("konnectivity-sleep");
        symlink(program.path()?, &link)?;
        let sleep = |args: &[&str]| {
            let args = args.iter().map(|arg| (*arg).to_owned()).collect();
            Process::spawn(Recipe { name: "sleep".into(), program: link.clone(), args, env: Vec::new() })
        };
        let start = Instant::now();
        ensure!(sleep(&["1"])?.exit(DEADLINE).await?.success());
        ensure!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
        for args in [&[][..], &["soon"], &["-1"], &["1", "2"], &["1.5"]] {
            ensure!(sleep(args)?.exit(DEADLINE).await?.code() == Some(1), "{args:?}");
        }
        let mut long = sleep(&["3600"])?;
        let path = format!("/proc/{}/exe", long.pid());
        let program = std::fs::canonicalize(program.path()?)?;
        let started = || async { std::fs::read_link(&path).is_ok_and(|exe| exe == program).then_some(()) };
        until("the program", DEADLINE, started).await?;
        long.signal(Signal::TERM)?;
        ensure!(long.exit(DEADLINE).await?.signal() == Some(15));
        std::fs::remove_file(&link)?;
    }
    Ok(())
}

/// Restarts the server while another process holds one of its ports.
fn restart_with_taken(pair: &mut Pair, port: u16) -> Result<TcpListener> {
    pair.server_mut().process.kill()?;
    let taken = TcpListener::bind(("127.0.0.1", port))?;
    pair.server_mut().process.restart()?;
    Ok(taken)
}

async fn fatal(mut pair: Pair, port: u16) -> Result<()> {
    let _taken = restart_with_taken(&mut pair, port)?;
    let status = pair.server_mut().process.exit(DEADLINE).await?;
    assert_eq!(status.code(), Some(1));
    pair.server().process.wait_said(&port.to_string()).await?;
    let log = pair.server().process.log();
    let last = log.last().map(String::as_str).unwrap_or_default();
    ensure!(last.matches("in use").count() == 1, "its reason is said once: {last}");
    Ok(())
}

/// As in client-go: missing files in a kubeconfig are a misconfiguration, not an outage.
#[tokio::test]
async fn a_kubeconfig_that_names_missing_files_is_fatal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("there"), "")?;
    let rows = [
        ("certificate-authority: missing", "token: t", "certificate-authority"),
        ("", "client-certificate: missing, client-key: there", "client-certificate"),
        ("", "client-certificate: there, client-key: missing", "client-key"),
        ("", "tokenFile: missing", "token file"),
    ];
    let mut pair = Setup::grpc().agents(0).start().await?;
    for (row, (cluster, user, field)) in rows.into_iter().enumerate() {
        let path = folder.path().join(format!("kubeconfig-{row}"));
        let config = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:1', {cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        );
        std::fs::write(&path, config)?;
        let flag = format!("--kubeconfig={}", path.display());
        let said = format!("--kubeconfig: {path:?}: {field} {:?}: ", folder.path().join("missing"));
        let flags = ["--enable-lease-controller", &flag];
        let mut server = Process::spawn(pair.recipe(Program::Server, &flags)?)?;
        let status = server.exit(DEADLINE).await?;
        ensure!(status.code() == Some(1) && server.said(&said), "{said}: {status}: {:?}", server.log());
        pair.add_agent("a", "", &["--count-server-leases", &flag])?;
        let mut agent = pair.agents.remove(0);
        let status = agent.process.exit(DEADLINE).await?;
        ensure!(status.code() == Some(1) && agent.process.said(&said), "{status}: {:?}", agent.process.log());
    }
    Ok(())
}

/// A collector of JSON lines can read the last one, too.
#[tokio::test]
async fn fatal_error_of_a_json_log_is_json() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, "nonsense")?;
    let pair = Setup::grpc().agents(0).start().await?;
    let flag = format!("--kubeconfig={}", path.display());
    let flags = ["--log-format=json", "--enable-lease-controller", &flag];
    let mut server = Process::spawn(pair.recipe(Program::Server, &flags)?)?;
    let status = server.exit(DEADLINE).await?;
    ensure!(status.code() == Some(1) && server.said("kubeconfig"), "{status}: {:?}", server.log());
    for line in server.log() {
        ensure!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn an_entry_that_is_no_host_is_refused_by_its_flag() -> Result<()> {
    let mut pair = Setup::grpc().agents(0).start().await?;
    pair.add_agent("a", "", &["--proxy-server-host=x:8091,y z:8091"])?;
    let agent = &mut pair.agents[0].process;
    let status = agent.exit(DEADLINE).await?;
    let named = agent.said("--proxy-server-host: \"y z\"") && !agent.said("--ca-cert");
    ensure!(status.code() == Some(1) && named, "{status}: {:?}", agent.log());
    Ok(())
}

/// A container runtime creates a directory if a hostPath is missing.
#[tokio::test]
async fn empty_directory_is_replaced_by_the_socket() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("frontend.sock");
    std::fs::create_dir(&path)?;
    let pair = Setup::grpc().places(&[Place::Unix(path)]).start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

#[tokio::test]
async fn a_taken_agent_port_is_fatal() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let port = pair.server().agent_port();
    fatal(pair, port).await
}

#[tokio::test]
async fn a_taken_grpc_frontend_port_is_fatal() -> Result<()> {
    let pair = Setup::new(Mode::Grpc, Front::Tls).agents(0).start().await?;
    let Place::Tls(address) = pair.frontend().place else { anyhow::bail!("a TLS frontend") };
    fatal(pair, address.port()).await
}

/// Overlapping pods on a host network need this: the newer one waits for the port.
#[tokio::test]
async fn a_taken_health_port_is_retried() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    let port = pair.server().health.port();
    let taken = restart_with_taken(&mut pair, port)?;
    let endpoint = Endpoint::echo().await?;
    until("traffic without a health port", DEADLINE, || async {
        works(pair.frontend(), &endpoint.target()).await.ok()
    })
    .await?;
    drop(taken);
    pair.server_mut().wait_healthy().await
}

#[tokio::test]
async fn a_taken_admin_port_is_retried() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    let admin = pair.server().admin;
    let taken = restart_with_taken(&mut pair, admin.port())?;
    pair.server_mut().wait_healthy().await?;
    pair.wait_connected().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    drop(taken);
    until("the admin port", DEADLINE, || async { e2e::http1::get(admin, "/metrics").await.ok() }).await?;
    Ok(())
}

#[tokio::test]
async fn a_taken_http_connect_port_is_retried() -> Result<()> {
    let mut pair = Setup::new(Mode::HttpConnect, Front::Tls).start().await?;
    let Place::Tls(address) = pair.frontend().place else { anyhow::bail!("a TLS frontend") };
    let taken = restart_with_taken(&mut pair, address.port())?;
    let health = pair.server().health;
    until("a server with an agent and without a frontend", DEADLINE, || async {
        let answer = e2e::http1::get(health, "/readyz?verbose").await.ok()?;
        let waits = answer.body.contains("[+]backends ok") && answer.body.contains("[-]frontend failed: ");
        (answer.head.status == 500 && waits).then_some(())
    })
    .await?;
    drop(taken);
    pair.server_mut().wait_ready().await?;
    let endpoint = Endpoint::echo().await?;
    until("the frontend", DEADLINE, || async { works(pair.frontend(), &endpoint.target()).await.ok() }).await
}

/// The agent returns only after the dial has come.
#[tokio::test]
async fn dials_right_after_a_restart_wait_for_the_first_agent() -> Result<()> {
    for setup in [Setup::grpc(), Setup::http_connect()] {
        let mut pair = setup.start().await?;
        let endpoint = Endpoint::echo().await?;
        pair.agent().process.signal(Signal::STOP)?;
        pair.server_mut().process.kill()?;
        pair.server_mut().process.restart()?;
        pair.server_mut().wait_healthy().await?;
        let target = endpoint.target();
        let agent = async {
            pair.server().wait_metric("pending_backend_dials", &[], 1.0).await?;
            pair.agent().process.signal(Signal::CONT)
        };
        let (dialed, continued) = tokio::join!(works(pair.frontend(), &target), agent);
        continued?;
        dialed?;
    }
    Ok(())
}

#[tokio::test]
async fn every_port_says_where_it_listens() -> Result<()> {
    for front in [Front::Unix, Front::Tls] {
        let pair = Setup::new(Mode::Grpc, front).server_arg("-v=0").start().await?;
        let frontend = match &pair.frontend().place {
            Place::Tls(address) => address.to_string(),
            Place::Unix(path) => path.display().to_string(),
        };
        let server = pair.server();
        let ports = [
            ("agent", format!(":{}\"", server.agent_port())),
            ("frontend", format!("{frontend}\"")),
            ("health", format!("{}\"", server.health)),
            ("admin", format!("{}\"", server.admin)),
        ];
        for (port, address) in ports {
            let said = format!("port=\"{port}\" address=\"");
            until(port, DEADLINE, || async {
                let log = pair.server().process.log();
                log.iter().any(|line| line.contains(&said) && line.contains(&address)).then_some(())
            })
            .await
            .map_err(|error| pair.server().process.explain(&error))?;
        }
    }
    Ok(())
}
