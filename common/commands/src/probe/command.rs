//! The command: its flags, the way to the frontend, the report and the exit status.

use std::ffi::OsString;

use bytes::Bytes;
use flags::Exit;
use http::{Method, StatusCode};
use net::host_port::host_port;
use status::{Probe, Stage, Status};
use tokio::time::Instant;

use super::frontend_address::{FrontendAddress, IdentityFlags, frontend};
use super::{AfterDial, stage_of, stages};
use crate::admin::{Admin, escaped};
use crate::table::{Table, millis, shown};
use crate::{NOT_ASKED, Program, not_asked, read};

const ABOUT: &str = "dials HOST:PORT through the tunnel as kube-apiserver does, and shows each stage with its time. \
    Exit status 0: reached; 2: wrong command line, or the server cannot be asked; \
    3: the frontend failed; 4: no agent could take the dial; 5: the agent did not answer; \
    6: the agent could not connect; 7: the endpoint gave no TLS or HTTP.";

/// The exit status of a probe that failed at this stage.
fn code_of(stage: &str) -> u8 {
    match stage {
        "frontend" => 3,
        "selection" => 4,
        "agent" => 5,
        "connect" => 6,
        "tls" | "http" => 7,
        _ => NOT_ASKED,
    }
}

flags::flags! {
    struct ProbeFlags {
        "Way" {
            /// Agent that dials, by its id. Empty: the server chooses one, as for kube-apiserver. With an agent the server
            /// itself dials, without a frontend.
            agent: String = "",
            /// Frontend as [PROTOCOL+]unix:PATH or [PROTOCOL+]tcp:HOST:PORT, where PROTOCOL is grpc (the default) or
            /// http-connect. Empty: one of the running server, a Unix socket if it has one.
            frontend: Option<FrontendAddress> = "" => frontend,
        }
        "After the dial" {
            /// Send a TLS ClientHello, and wait for the first byte of the answer.
            tls: bool = "false",
            /// Send an HTTP GET, and wait for the first line of the answer.
            http: bool = "false",
        }
    }
}

impl ProbeFlags {
    fn then(&self) -> Result<AfterDial, Exit> {
        match (self.tls, self.http) {
            (true, true) => {
                Err(not_asked("--tls cannot be used with --http: the endpoint speaks one of them"))
            }
            (true, false) => Ok(AfterDial::Tls),
            (false, true) => Ok(AfterDial::Http),
            (false, false) => Ok(AfterDial::Close),
        }
    }
}

pub(crate) async fn run(line: Vec<OsString>) -> Result<Exit, Exit> {
    let ((flags, identity), admin, words): ((ProbeFlags, IdentityFlags), _, _) =
        read((Program::Server, "probe", ABOUT), (" HOST:PORT", 1), line)?;
    let target = words.into_iter().next().unwrap_or_default();
    if host_port(&target).is_none() {
        return Err(not_asked(&format!("{target:?} is no target: give HOST:PORT")));
    }
    let (admin, then) = (Admin::new(Program::Server, admin), flags.then()?);
    let stages = match (flags.agent.as_str(), &flags.frontend) {
        ("", _) => by_frontend((&flags, &identity), &admin, &target, then).await?,
        (_, Some(_)) => {
            return Err(not_asked(
                "--agent cannot be used with --frontend: the server itself dials through the agent",
            ));
        }
        (agent, None) => by_agent(agent, &admin, &target, then).await?,
    };
    let mut table = Table::new(&["STAGE", "TIME", "RESULT"]);
    for Stage { name, seconds, ok, note } in &stages {
        let time = if *seconds > 0.0 { millis(*seconds) } else { String::new() };
        let note = if *ok { shown(note) } else { format!("FAILED: {note}") };
        table.row([name, &time, &note]);
    }
    let failed = stages.iter().find(|stage| !stage.ok);
    Ok(Exit { code: failed.map_or(0, |stage| code_of(&stage.name)), ..Exit::show(table.to_string()) })
}

/// Dials through a frontend as kube-apiserver does, and asks the server why it chose the agent.
async fn by_frontend(
    (flags, identity): (&ProbeFlags, &IdentityFlags),
    admin: &Admin,
    target: &str,
    then: AfterDial,
) -> Result<Vec<Stage>, Exit> {
    let place = match &flags.frontend {
        Some(place) => place.clone(),
        None => FrontendAddress::of(&admin.status("").await?.listeners)
            .ok_or_else(|| not_asked("the server has no bound frontend: `status` shows its listeners"))?,
    };
    let began = Instant::now();
    let connected = place.connect(identity).await;
    let outcome = connected.as_ref().map(|_| place.to_string()).map_err(|error| format!("{place}: {error}"));
    let mut all = vec![stage_of("frontend", began, outcome)];
    let Ok(io) = connected else { return Ok(all) };
    // The agent of an open connection is in the list of connections, that of a failed dial in the list of failures.
    let selection = async |agent: Option<String>| {
        let probed = ask(admin, &format!("target={}", escaped(target))).await;
        let why = probed.map_or_else(|error| error.stderr.trim().to_owned(), |probe| probe.selection);
        let who =
            agent.map_or_else(|| "unknown agent".to_owned(), |agent| format!("agent {}", shown(&agent)));
        Stage { name: "selection".to_owned(), ok: true, note: format!("{who}: {why}"), ..Stage::default() }
    };
    let mut opened = None;
    let dialed = async || {
        let query = format!("list=connections&limit=1000&filter={}", escaped(target));
        let agent = admin.status(&query).await.ok().and_then(|status| agent_of(&status, target));
        let stage = selection(agent.clone()).await;
        let rtt = match &agent {
            Some(agent) => rtt_of(admin, agent).await,
            None => None,
        };
        opened = Some((stage, rtt));
    };
    let mut dial = stages(io, place.protocol, (target, then), dialed).await;
    let (stage, rtt) = match opened {
        Some(opened) => opened,
        None if dial.iter().any(|stage| stage.name == "frontend") => {
            all.extend(dial);
            return Ok(all);
        }
        None => {
            let failures = admin.status("").await.map(|status| status.failures).unwrap_or_default();
            let failure = failures.into_iter().find(|failure| failure.target == target);
            if let Some(failed) = dial.iter_mut().find(|stage| stage.name == "selection") {
                // The server knows more than it tells the client. Another dial of the target may have failed otherwise.
                let why = failure.filter(|failure| failure.error.starts_with("No agent available"));
                failed.note = why.map_or_else(|| failed.note.clone(), |failure| failure.error);
                all.extend(dial);
                return Ok(all);
            }
            (selection(failure.map(|failure| failure.peer)).await, None)
        }
    };
    if let (Some(first), Some(rtt)) = (dial.first_mut(), rtt) {
        first.note = format!("{}; the RTT to the agent was {}", first.note, millis(rtt));
    }
    all.push(stage);
    all.extend(dial);
    Ok(all)
}

/// The agent that carries the newest connection to the target.
fn agent_of(status: &Status, target: &str) -> Option<String> {
    let found = status.connections.iter().filter(|connection| connection.target == target);
    found.max_by(|one, other| one.since.cmp(&other.since)).map(|connection| connection.peer.clone())
}

/// The RTT to an agent, in seconds.
async fn rtt_of(admin: &Admin, agent: &str) -> Option<f64> {
    let status = admin.status(&format!("list=agents&limit=1000&filter={}", escaped(agent))).await.ok()?;
    status.agents.into_iter().find(|found| found.id == agent)?.rtt_seconds
}

/// A dial inside the server.
async fn by_agent(agent: &str, admin: &Admin, target: &str, then: AfterDial) -> Result<Vec<Stage>, Exit> {
    let query = format!("target={}&agent={}&then={}", escaped(target), escaped(agent), then.name());
    let probe = ask(admin, &query).await?;
    let selection =
        Stage { name: "selection".to_owned(), ok: true, note: probe.selection, ..Stage::default() };
    // The stage of a dial without an agent is `selection`, too.
    let missing = probe.stages.iter().any(|stage| stage.name == "selection");
    Ok(Some(selection).filter(|_| !missing).into_iter().chain(probe.stages).collect())
}

async fn ask(admin: &Admin, query: &str) -> Result<Probe, Exit> {
    match admin.send(Method::POST, &format!("/probe?{query}"), Bytes::new()).await? {
        (StatusCode::OK, body) => serde_json::from_slice(&body)
            .map_err(|error| not_asked(&format!("/probe answers no JSON: {error}"))),
        (code, body) => Err(admin.refused("/probe", code, &body)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::probe::STAGE_TIMEOUT;

    #[tokio::test(start_paused = true)]
    async fn frontend_that_accepts_and_stays_silent_fails_the_probe() {
        let folder = tempfile::tempdir().unwrap();
        let own = rcgen::generate_simple_self_signed(["frontend".to_owned()]).unwrap();
        let [cert, key] = ["cert", "key"].map(|name| folder.path().join(name));
        std::fs::write(&cert, own.cert.pem()).unwrap();
        std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let line = [
            "probe".to_owned(),
            format!("--frontend=tcp:{}", silent.local_addr().unwrap()),
            format!("--client-cert={}", cert.display()),
            format!("--client-key={}", key.display()),
            format!("--ca-cert={}", cert.display()),
            "10.0.0.1:80".to_owned(),
        ];
        let line = ["proxy-server".to_owned()].into_iter().chain(line).map(OsString::from).collect();
        let exit = timeout(2 * STAGE_TIMEOUT, run(line)).await.expect("ends").unwrap();
        assert_eq!(exit.code, 3, "{}", exit.stdout);
        assert!(exit.stdout.contains("it timed out"), "{}", exit.stdout);
    }
}
