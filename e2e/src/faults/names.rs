//! Name servers that deny, are silent, or change their answers.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{Context, Times, networked, within};
use crate::balancer::Balancer;
use crate::endpoints::Endpoint;
use crate::exchange::works;
use crate::pair::Setup;
use crate::program::{Program, script};
use crate::wait::{DEADLINE, until};

/// The seconds for which an answer may be cached.
const TTL: u8 = 1;

/// An answer to a question.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// The name does not exist.
    NoSuchName,
    /// None.
    Silence,
    /// This address.
    Address(Ipv4Addr),
}

/// A name server on port 53 of the loopback interface of a namespace. It has only IPv4 addresses.
struct NameServer {
    answers: Arc<Mutex<HashMap<&'static str, Answer>>>,
    task: AbortHandle,
}

impl NameServer {
    async fn start() -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 53)).await.context("port 53")?;
        let answers = Arc::<Mutex<HashMap<_, _>>>::default();
        let known = Arc::clone(&answers);
        let task = tokio::spawn(async move {
            let mut question = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut question).await {
                let answer = answer(&question[..length], &known.lock());
                if let Some(answer) = answer {
                    let _ = socket.send_to(&answer, client).await;
                }
            }
        });
        Ok(Self { answers, task: task.abort_handle() })
    }

    fn set(&self, name: &'static str, answer: Answer) {
        self.answers.lock().insert(name, answer);
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The answer to a message with one question, without its additional records.
fn answer(question: &[u8], known: &HashMap<&'static str, Answer>) -> Option<Vec<u8>> {
    let (mut name, mut at) = (Vec::new(), 12);
    loop {
        let length = usize::from(*question.get(at)?);
        let label = question.get(at + 1..at + 1 + length)?;
        at += 1 + length;
        if length == 0 {
            break;
        }
        name.push(String::from_utf8_lossy(label).to_lowercase());
    }
    let asks_for_ipv4 = question.get(at..at + 2)? == [0, 1];
    let (code, address) = match known.get(name.join(".").as_str())? {
        Answer::Silence => return None,
        Answer::NoSuchName => (3, None),
        Answer::Address(address) => (0, Some(*address).filter(|_| asks_for_ipv4)),
    };
    let mut bytes = question.get(..2)?.to_vec();
    bytes.extend([0x81, 0x80 | code, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    bytes.extend(question.get(12..at + 4)?);
    if let Some(address) = address {
        // The name by reference, type A, class IN.
        bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, TTL, 0, 4]);
        bytes.extend(address.octets());
    }
    Some(bytes)
}

/// An agent asks a name server that denies, is silent, and moves first an endpoint and then the server.
pub(super) fn name_server(context: &Context) -> Result<Times> {
    const ANSWERED: Duration = Duration::from_millis(5_500);
    const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    networked(0, async |_| {
        let (names, folder) = (NameServer::start().await?, tempfile::tempdir()?);
        std::fs::write(folder.path().join("resolv.conf"), "nameserver 127.0.0.1\n")?;
        let (server, agent) = match &context.programs {
            Some(programs) => programs.clone(),
            None => (Program::Server.path()?, Program::Agent.path()?),
        };
        let text = format!(
            "exec unshare --mount sh -c 'mount --bind {}/resolv.conf /etc/resolv.conf && exec {} \"$@\"' sh \"$@\"",
            folder.path().display(),
            agent.display()
        );
        let agent = script(folder.path(), "agent", &text)?;
        let mut pair = Setup::http_connect().agents(0).programs(server, agent).start().await?;
        // The server listens on the first address; a relay on the second one leads to it.
        let relay = TcpListener::bind((SECOND, pair.server().agent_port())).await?;
        let relay = Balancer::start_on(relay, vec![pair.server().agent_address()])?;
        names.set("servers.test", Answer::Address(SECOND));
        pair.add_agent("named", "", &["--proxy-server-host=servers.test", "--probe-interval=100ms"])?;
        pair.wait_connected().await?;
        ensure!(relay.accepted() > 0, "the agent did not ask the name server");

        let [first, second] = [Endpoint::echo().await?, Endpoint::echo_at(SECOND.into()).await?];
        let mut noticed = Duration::ZERO;
        for (name, answer, status) in
            [("denied.test", Answer::NoSuchName, 502), ("silent.test", Answer::Silence, 504)]
        {
            names.set(name, answer);
            let asked = Instant::now();
            let error = pair.frontend().dial_error(&format!("{name}:{}", first.address().port())).await?;
            noticed = noticed.max(within(name, asked, ANSWERED)?);
            ensure!(error.status() == Some(status) || !context.is_native(), "{name}: {error}");
        }
        names.set("moves.test", Answer::Address(Ipv4Addr::LOCALHOST));
        works(pair.frontend(), &format!("moves.test:{}", first.address().port())).await?;
        names.set("moves.test", Answer::Address(SECOND));
        let moved = Instant::now();
        let target = format!("moves.test:{}", second.address().port());
        until("the new address", DEADLINE, || async { works(pair.frontend(), &target).await.ok() }).await?;
        let endpoint = moved.elapsed();

        names.set("servers.test", Answer::Address(Ipv4Addr::LOCALHOST));
        let lost = Instant::now();
        drop(relay);
        until("the server's new address", DEADLINE, || async { works(pair.frontend(), &target).await.ok() })
            .await?;
        let recovered = within("the agent was back", lost, Duration::from_secs(15))?;
        Ok(Times::new(noticed, recovered).note(format!("endpoint's new address after {endpoint:.1?}")))
    })
}
