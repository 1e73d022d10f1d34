//! `konnectivity-check compare`: two frontends, the same targets.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::endpoints::{Endpoint, PAGE, Refusing};
use e2e::frontend::Place;
use e2e::pair::{FRONTS, Front, Pair, Setup};
use e2e::process::output;
use e2e::program::Program;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// Runs the comparison to its end; returns its exit status and all that it printed.
async fn compare(words: Vec<String>) -> Result<(i32, String)> {
    let mut command = Command::new(Program::Agent.path()?);
    command.arg0("/konnectivity-check").arg("compare").args(words);
    let output = output(command.stdout(Stdio::piped())).await?;
    let said = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    Ok((output.status.code().context("killed")?, said))
}

/// The words of a comparison of these frontends.
fn words(old: &str, new: &str, more: &[&str]) -> Vec<String> {
    let sides = [format!("--old={old}"), format!("--new={new}")];
    sides.into_iter().chain(more.iter().map(|word| (*word).to_owned())).collect()
}

/// The first frontend of a pair, as the flag has it.
fn frontend(pair: &Pair) -> String {
    let mode = pair.frontend().mode.flag();
    match &pair.frontend().place {
        Place::Unix(path) => format!("uds:{},{mode}", path.display()),
        Place::Tls(address) => format!("tcp:{address},{mode}"),
    }
}

#[tokio::test]
async fn a_pair_is_the_same_as_itself_by_every_frontend() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let (page, refusing) = (Endpoint::page().await?, Refusing::new()?);
        let place = frontend(&pair);
        let identity = [
            format!("--client-cert={}", pair.pki.front_client.cert.display()),
            format!("--client-key={}", pair.pki.front_client.key.display()),
            format!("--ca-cert={}", pair.pki.front_ca.display()),
        ];
        let identity: Vec<&str> =
            identity.iter().map(String::as_str).filter(|_| front == Front::Tls).collect();
        let (page, refusing) = (page.target(), refusing.target());
        let more = [&identity[..], &["--http", "--count=7", &page, &refusing]].concat();
        let (code, said) = compare(words(&place, &place, &more)).await?;
        ensure!(
            code == 0 && said.contains("safe to switch: 2 of 2 targets behave the same"),
            "{code}: {said}"
        );
        ensure!(said.contains(&format!("HTTP/1.1 200 OK, {} bytes", PAGE.len())), "{said}");
        ensure!(said.contains("0 of 1: connection refused") && said.contains("fails the same way"), "{said}");
        // The agent port speaks TLS, and asks for a certificate.
        let port = pair.server().agent_address().to_string();
        let more = [&identity[..], &["--tls", "--count=7", &port]].concat();
        let (code, said) = compare(words(&place, &place, &more)).await?;
        ensure!(code == 0 && said.contains("chain of "), "{code}: {said}");
        if front == Front::Tls {
            let (code, said) = compare(words(&place, &place, &[&page])).await?;
            ensure!(
                code == 1 && said.contains("frontend failed") && said.contains("NOT SAFE"),
                "{code}: {said}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn long_answers_within_tls_and_bytes_behind_close_notify_are_compared() -> Result<()> {
    // More than rustls takes in one step.
    const BEHIND: &[u8] = &[0; 10_000];
    for pair in [Setup::grpc().start().await?, Setup::http_connect().start().await?] {
        for (length, behind) in [(100, BEHIND), (64 << 10, b""), (300_000, BEHIND)] {
            let page = Endpoint::tls_page(pair.pki.agent_server()?, length, behind).await?;
            let more = ["--tls", "--http", "--count=3", &page.target()];
            let (code, said) = compare(words(&frontend(&pair), &frontend(&pair), &more)).await?;
            ensure!(
                code == 0 && said.contains(&format!("HTTP/1.0 200 OK, {length} bytes")),
                "{length}: {code}: {said}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_new_server_that_fails_is_not_safe() -> Result<()> {
    let (old, empty) = (Setup::grpc().start().await?, Setup::http_connect().agents(0).start().await?);
    let page = Endpoint::page().await?;
    for (new, cause) in [
        (frontend(&empty), "no agent"),
        ("uds:/no/such.sock".to_owned(), "frontend failed"),
        (frontend(&old).replace(",grpc", ",http-connect"), "frontend failed"),
    ] {
        let (code, said) = compare(words(&frontend(&old), &new, &["--count=2", &page.target()])).await?;
        ensure!(code == 1 && said.contains("NOT SAFE to switch: 1 of 1 targets"), "{new}: {code}: {said}");
        ensure!(said.contains(&format!("0 of 2: {cause}")), "{new}: {said}");
    }
    // Nothing is shown by targets that nobody reaches.
    let refusing = Refusing::new()?;
    let (code, said) = compare(words(&frontend(&old), &frontend(&old), &[&refusing.target()])).await?;
    ensure!(code == 1 && said.contains("no target was reached"), "{code}: {said}");
    let (code, said) = compare(words(&frontend(&empty), &frontend(&old), &[&page.target()])).await?;
    ensure!(code == 1 && said.contains("reached only through the new server"), "{code}: {said}");
    Ok(())
}

/// A frontend that answers itself, with another page, after `delay`.
fn impostor(folder: &std::path::Path, page: &'static str, delay: Duration) -> Result<String> {
    let path = folder.join("impostor.sock");
    let listener = UnixListener::bind(&path)?;
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = vec![0; 4096];
                let _head = socket.read(&mut buffer).await?;
                tokio::time::sleep(delay).await;
                socket.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
                let _head = socket.read(&mut buffer).await?;
                socket.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{page}").as_bytes()).await
            });
        }
    });
    Ok(format!("uds:{},http-connect", path.display()))
}

#[tokio::test]
async fn other_bytes_and_slow_dials_are_not_safe() -> Result<()> {
    let old = Setup::grpc().start().await?;
    let page = Endpoint::page().await?;
    for (text, delay, cause) in [
        (PAGE, Duration::ZERO, "safe to switch: 1 of 1 targets"),
        ("Another page.", Duration::ZERO, "DIFFERS: the endpoint's answers differ"),
        (PAGE, Duration::from_secs(1), "DIFFERS: dials are slower"),
    ] {
        let folder = tempfile::tempdir()?;
        let new = impostor(folder.path(), text, delay)?;
        let more = ["--http", "--count=3", &page.target()];
        let (code, said) = compare(words(&frontend(&old), &new, &more)).await?;
        ensure!(said.contains(cause) && code == i32::from(cause.contains("DIFFERS")), "{code}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn a_wrong_command_line_is_one_line_and_status_2() -> Result<()> {
    for more in [&[][..], &["nowhere"], &["--count=x", "a:1"], &["--oldd=x", "a:1"]] {
        let (code, said) = compare(words("uds:/o", "uds:/n", more)).await?;
        ensure!(code == 2 && said.lines().count() == 1, "{more:?}: {code}: {said}");
    }
    let (code, said) = compare(words("uds:/o", "uds:/n", &["--help"])).await?;
    ensure!(
        code == 0 && said.contains("Usage: konnectivity-check compare [flags] HOST:PORT..."),
        "{code}: {said}"
    );
    Ok(())
}
