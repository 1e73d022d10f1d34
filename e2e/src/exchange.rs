//! Common exchanges over one connection, each with checksums and a deadline, and many of them at once.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::frontend::{Conn, Frontend};
use crate::payload::{Corrupt, Payload};
use crate::wait::{DEADLINE, within, within_limit};

/// Sends a payload to an echo and reads it back concurrently; the connection stays open.
pub async fn echo(conn: Conn, payload: Payload) -> Result<Conn> {
    echo_within(conn, payload, DEADLINE).await
}

/// Like [`echo`], with this time limit.
pub async fn echo_within(conn: Conn, payload: Payload, limit: Duration) -> Result<Conn> {
    let (mut input, mut output) = tokio::io::split(conn);
    let both = async { tokio::join!(payload.send(&mut output), payload.receive(&mut input)) };
    let (sent, received) = within_limit("an echo", limit, both).await?;
    sent.context("cannot send")?;
    received?;
    Ok(input.unsplit(output))
}

/// Dials an echo, checks the echo of a payload, and closes the connection in order.
pub async fn echoed(frontend: &Frontend, target: &str, payload: Payload) -> Result<()> {
    let mut conn = echo(frontend.dial(target).await?, payload).await?;
    conn.shutdown().await?;
    expect_end(&mut conn).await
}

/// Checks that one small echo works now.
pub async fn works(frontend: &Frontend, target: &str) -> Result<()> {
    echoed(frontend, target, Payload::new(1, 100)).await.context("a plain dial and echo")
}

/// Sends a payload and closes at once, as an upload does. Waits until the other side has closed, too.
pub async fn upload(frontend: &Frontend, target: &str, payload: Payload) -> Result<()> {
    let mut conn = frontend.dial(target).await?;
    within("an upload", payload.send(&mut conn)).await??;
    conn.shutdown().await?;
    expect_end(&mut conn).await
}

/// Waits for an orderly end of input without further bytes.
pub async fn expect_end(conn: &mut Conn) -> Result<()> {
    let mut rest = Vec::new();
    within("the end of a connection", conn.read_to_end(&mut rest))
        .await?
        .context("the end of a connection")?;
    ensure!(rest.is_empty(), Corrupt(rest.len() as u64));
    Ok(())
}

/// Waits for any end of input, orderly or not.
pub async fn expect_any_end(conn: &mut Conn) -> Result<()> {
    let mut rest = Vec::new();
    // A reset counts as an end.
    let _ = within("the end of a connection", conn.read_to_end(&mut rest)).await?;
    Ok(())
}

/// Runs all of this work, `at_once` at a time, and returns its values in the order of their ends.
///
/// # Errors
/// The first failure.
pub async fn pool<T, E, F>(at_once: usize, work: impl IntoIterator<Item = F>) -> Result<Vec<T>>
where
    T: Send + 'static,
    E: Into<anyhow::Error> + Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let (mut running, mut values, mut rest) = (JoinSet::new(), Vec::new(), work.into_iter());
    loop {
        running.extend(rest.by_ref().take(at_once - running.len()));
        match running.join_next().await {
            Some(value) => values.push(value?.map_err(Into::into)?),
            None => return Ok(values),
        }
    }
}
