//! An HTTP CONNECT dial.

use std::io::Cursor;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt, join};

use super::{DialError, Io};
use crate::http1::read_head;
use crate::wait::within;

/// Sends the request and waits for the head of the answer; an error contains the whole answer.
pub(super) async fn dial(mut socket: Box<dyn Io>, target: &str) -> Result<Box<dyn Io>, DialError> {
    // kube-apiserver sends this Host for every target.
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    socket.write_all(request.as_bytes()).await.context("cannot send CONNECT")?;
    socket.flush().await.context("cannot send CONNECT")?;
    let (head, rest) = within("the answer to CONNECT", read_head(&mut socket))
        .await?
        .map_err(|error| DialError::NoAnswer(format!("{error:#}")))?;
    if head.status != 200 {
        let mut body = rest;
        // After an error the frontend closes the connection, which ends the body.
        within("the body of an error", socket.read_to_end(&mut body))
            .await?
            .context("the body of an error")?;
        return Err(DialError::Http { head, body: String::from_utf8_lossy(&body).into_owned() });
    }
    if rest.is_empty() {
        return Ok(socket);
    }
    // Payload in the same read as the head is tolerated here; a separate test covers it.
    let (input, output) = tokio::io::split(socket);
    Ok(Box::new(join(Cursor::new(rest).chain(input), output)))
}
