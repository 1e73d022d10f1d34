//! Requests to the admin port of the running process: HTTP/1.1, one connection for each.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flags::{Exit, FlagError};
use http::header::HOST;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use net::host_port::host_port;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use status::{COMMAND_HEADER, List, MAX_LIMIT, Status};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::probe::STAGE_TIMEOUT;
use crate::{Program, not_asked};

/// How long the program may send nothing before its answer and within it. A page of a list takes 50 ms, or 2 s if a stream does not
/// answer.
const ANSWER_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a probe, whose answer comes after two stages.
const PROBE_IDLE_TIMEOUT: Duration = Duration::from_secs(2 * STAGE_TIMEOUT.as_secs() + 5);

flags::flags! {
    /// Where the process is asked.
    pub(crate) struct AdminFlags {
        "Where to ask" {
            /// Admin port of the running program, as HOST:PORT. Empty: its default port at 127.0.0.1.
            admin_address: String = "" => address,
        }
    }
}

fn address(flag: &'static str, text: String) -> Result<String, FlagError> {
    if text.is_empty() || host_port(&text).is_some() {
        return Ok(text);
    }
    Err(FlagError::value(flag, text, "it must be HOST:PORT"))
}

/// The admin port of the running process.
#[derive(Debug)]
pub(crate) struct Admin {
    program: &'static str,
    address: String,
    flag: &'static str,
}

impl Admin {
    pub(crate) fn new(program: Program, flags: AdminFlags) -> Self {
        let (default, flag) = match program {
            Program::Server => ("127.0.0.1:8095", "--admin-port"),
            Program::Agent => ("127.0.0.1:8094", "--admin-server-port"),
        };
        let address = if flags.admin_address.is_empty() { default.to_owned() } else { flags.admin_address };
        Self { program: program.name(), address, flag }
    }

    /// The first page of `/statusz` for this query.
    ///
    /// # Errors
    /// The end of the command: one line with the address and the fix.
    pub(crate) async fn status(&self, query: &str) -> Result<Status, Exit> {
        let (code, body) = self.send(Method::GET, &format!("/statusz?{query}"), Bytes::new()).await?;
        if code != StatusCode::OK {
            return Err(self.refused("/statusz", code, &body));
        }
        serde_json::from_slice(&body).map_err(|error| {
            not_asked(&format!("{}/statusz is no status of a {}: {error}", self.address, self.program))
        })
    }

    /// The document with the whole of one list, read page by page up to one that is incomplete.
    pub(crate) async fn all_pages(&self, list: List) -> Result<Status, Exit> {
        let name = list.name(self.program == Program::Agent.name());
        let page = async |offset: usize| {
            self.status(&format!("list={name}&limit={MAX_LIMIT}&offset={offset}")).await
        };
        let mut all = page(0).await?;
        let mut offset = MAX_LIMIT;
        while !all.incomplete && all.agents.len() + all.servers.len() + all.connections.len() >= offset {
            let next = page(offset).await?;
            all.incomplete = next.incomplete;
            all.agents.extend(next.agents);
            all.servers.extend(next.servers);
            all.connections.extend(next.connections);
            offset += MAX_LIMIT;
        }
        Ok(all)
    }

    /// Sends a request; returns the status and the body of its answer.
    ///
    /// # Errors
    /// If there is no answer: one line with the address and the fix.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Exit> {
        let Self { program, address, flag } = self;
        let why = match exchange(address, method, path, body).await {
            Ok(answer) => return Ok(answer),
            Err(why) => why,
        };
        Err(not_asked(&format!(
            "cannot ask the {program} at http://{address}: {why}: is it running here, with this {flag}? \
             --admin-address=HOST:PORT names another port"
        )))
    }

    /// The end of a command whose request was refused.
    pub(crate) fn refused(&self, path: &str, code: StatusCode, body: &[u8]) -> Exit {
        let (program, address) = (self.program, &self.address);
        let said = String::from_utf8_lossy(body);
        let fix = match code {
            StatusCode::NOT_FOUND => format!("is this the admin port ({}) of a {program}?", self.flag),
            _ => said.trim().to_owned(),
        };
        not_asked(&format!("http://{address}{path} answers {}: {fix}", code.as_u16()))
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn exchange(
    address: &str,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<(StatusCode, Bytes), AnyError> {
    let silence = if method == Method::POST { PROBE_IDLE_TIMEOUT } else { ANSWER_IDLE_TIMEOUT };
    let stream = within(ANSWER_IDLE_TIMEOUT, TcpStream::connect(address)).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header(HOST, address);
    let request = request.header(COMMAND_HEADER, "1").body(Full::new(body))?;
    let (head, mut body) = within(silence, sender.send_request(request)).await?.into_parts();
    let mut bytes = BytesMut::new();
    while let Some(frame) = within(ANSWER_IDLE_TIMEOUT, async { body.frame().await.transpose() }).await? {
        bytes.extend(frame.into_data());
    }
    connection.abort();
    Ok((head.status, bytes.freeze()))
}

/// The result of `step`, or that it took longer than the limit.
async fn within<T, E: Into<AnyError>>(
    limit: Duration,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, AnyError> {
    match timeout(limit, step).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs()).into()),
    }
}

/// A value for a query.
pub(crate) fn escaped(value: &str) -> String {
    utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    /// Asks a program that writes `pieces`, each after a pause of this many seconds, and then nothing.
    async fn ask(
        method: Method,
        pause: u64,
        pieces: &'static [&'static str],
    ) -> Result<(StatusCode, Bytes), Exit> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin_address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for piece in pieces {
                sleep(Duration::from_secs(pause)).await;
                stream.write_all(piece.as_bytes()).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        Admin::new(Program::Agent, AdminFlags { admin_address }).send(method, "/statusz", Bytes::new()).await
    }

    #[tokio::test(start_paused = true)]
    async fn probe_is_awaited_for_both_of_its_stages() {
        const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert!(ask(Method::POST, 2 * STAGE_TIMEOUT.as_secs(), &[ANSWER]).await.is_ok());
        let error = ask(Method::POST, 2 * STAGE_TIMEOUT.as_secs() + 10, &[ANSWER]).await.unwrap_err();
        assert!(error.stderr.contains(": no answer within 85 s: is it running"), "{}", error.stderr);
    }

    /// A page of connections.
    fn page(rows: usize, incomplete: bool) -> Status {
        Status { connections: vec![status::Connection::default(); rows], incomplete, ..Status::default() }
    }

    #[tokio::test]
    async fn list_ends_with_an_incomplete_page_and_says_so() {
        let full = || page(MAX_LIMIT, false);
        for (pages, rows, incomplete) in [
            (vec![full(), full(), page(7, false)], 2 * MAX_LIMIT + 7, false),
            (vec![full(), full(), page(7, true)], 2 * MAX_LIMIT + 7, true),
            (vec![full(), page(MAX_LIMIT, true), full()], 2 * MAX_LIMIT, true),
            (vec![page(7, true), full()], 7, true),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let admin_address = listener.local_addr().unwrap().to_string();
            let server = tokio::spawn(async move {
                for page in pages {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    assert!(stream.read(&mut [0; 1 << 10]).await.unwrap() > 0, "the request");
                    let body = serde_json::to_string(&page).unwrap();
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    stream.shutdown().await.unwrap();
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
            });
            let admin = Admin::new(Program::Agent, AdminFlags { admin_address });
            let all = admin.all_pages(List::Connections).await.unwrap();
            assert_eq!((all.connections.len(), all.incomplete), (rows, incomplete));
            server.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_program_is_given_up_after_10_s_and_a_slow_one_is_not() {
        const ANSWER: [&str; 4] = ["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "1", "2", "3"];
        for pieces in [&[], &ANSWER[..1], &ANSWER[..3]] {
            let error = ask(Method::GET, 4, pieces).await.unwrap_err();
            assert!(error.stderr.contains(": no answer within 10 s: is it running"), "{}", error.stderr);
            assert_eq!((error.code, error.stderr.lines().count()), (2, 1));
        }
        assert_eq!(ask(Method::GET, 4, &ANSWER).await, Ok((StatusCode::OK, "123".into())));
    }
}
