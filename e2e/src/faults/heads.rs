//! CONNECT heads that a strict parser refuses.

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::{Base, Context, Times, alone};
use crate::endpoints::Endpoint;
use crate::exchange::works;
use crate::pair::Setup;
use crate::wait::within;

/// Requests for the target `@@`, without the last line break: what is wrong, and the bytes.
const HEADS: [(&str, &str); 10] = [
    ("a bare line feed", "CONNECT @@ HTTP/1.1\nHost: @@\r\n"),
    ("a folded line", "CONNECT @@ HTTP/1.1\r\nHost: @@\r\n folded\r\n"),
    ("a space before the colon", "CONNECT @@ HTTP/1.1\r\nHost : @@\r\n"),
    ("Transfer-Encoding", "CONNECT @@ HTTP/1.1\r\nHost: @@\r\nTransfer-Encoding: chunked\r\n"),
    ("a body", "CONNECT @@ HTTP/1.1\r\nHost: @@\r\nContent-Length: 5\r\n"),
    ("user information", "CONNECT user@@@ HTTP/1.1\r\nHost: @@\r\n"),
    ("a port that is no number", "CONNECT localhost:x HTTP/1.1\r\nHost: @@\r\n"),
    ("a control character", "CONNECT @@ HTTP/1.1\r\nHost: @@\r\nX: a\u{1}b\r\n"),
    ("an empty name", "CONNECT @@ HTTP/1.1\r\nHost: @@\r\n: x\r\n"),
    ("another version", "CONNECT @@ HTTP/3.7\r\nHost: @@\r\n"),
];

pub(super) fn strict_heads(context: &Context) -> Result<Times> {
    alone(async || {
        let pair = context.with(Setup::http_connect()).start().await?;
        let endpoint = Endpoint::echo().await?;
        let (base, began) = (Base::of(&pair)?, Instant::now());
        let endless = format!("CONNECT @@ HTTP/1.1\r\nX: {}", "x".repeat(64 << 10));
        let many = format!("CONNECT @@ HTTP/1.1\r\n{}", "X: x\r\n".repeat(100));
        let long = [("a head of 64 KiB", endless.as_str()), ("100 fields", many.as_str())];
        for (wrong, head) in HEADS.into_iter().chain(long) {
            let mut socket = pair.frontend().socket().await?;
            let head = format!("{}\r\n", head.replace("@@", &endpoint.target()));
            // The server may answer before it has read all, and close.
            let _ = socket.write_all(head.as_bytes()).await;
            let _ = socket.flush().await;
            let mut answer = Vec::new();
            let _ = within(wrong, socket.read_to_end(&mut answer)).await?;
            let answer = String::from_utf8_lossy(&answer);
            let refused = ["HTTP/1.1 4", "HTTP/1.1 505"].iter().any(|start| answer.starts_with(start));
            ensure!(answer.is_empty() || refused, "{wrong}: {answer:.60}");
        }
        ensure!(endpoint.accepted() == 0, "an endpoint was dialed");
        works(pair.frontend(), &endpoint.target()).await.context("a proper head")?;
        let took = began.elapsed();
        base.back(context, &pair).await?;
        Ok(Times::default().note(format!("{} heads refused in {took:.1?}", HEADS.len() + long.len())))
    })
}
