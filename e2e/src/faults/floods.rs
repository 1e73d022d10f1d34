//! Floods of HTTP/2 frames at the agent port, by an authenticated client, beside ordinary dials.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustls::ClientConfig;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Builder;
use tokio::time::{Instant, timeout};

use super::load::{Load, ensure_calm};
use super::{Base, Context, Times, alone};
use crate::adversarial::CONNECT;
use crate::adversarial::frames::{
    DATA, END_HEADERS, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, block, frame, hello, read_frame,
};
use crate::endpoints::Endpoint;
use crate::frontend::tls_socket;
use crate::pair::Setup;

/// The types of frames that only floods use.
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// How long a flood lasts unless the server ends it.
const LASTS: Duration = Duration::from_secs(2);

/// Frames of one write.
const BATCH: u32 = 50;

/// Largest growth of the server, in MiB.
const MOST_MIB: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Streams that are reset at once.
    Resets,
    /// Streams that the server must reset, because of an invalid WINDOW_UPDATE.
    MadeYouReset,
    /// A header block without end.
    Continuation,
    Pings,
    Settings,
    /// DATA without bytes on one stream.
    EmptyData,
}

const KINDS: [Kind; 6] =
    [Kind::Resets, Kind::MadeYouReset, Kind::Continuation, Kind::Pings, Kind::Settings, Kind::EmptyData];

impl Kind {
    /// Whether the server must end the connection. Pings and SETTINGS are answered one at a time: while an answer cannot be
    /// written, nothing is read.
    fn must_end(self) -> bool {
        !matches!(self, Self::Pings | Self::Settings)
    }

    /// The frames before the flood.
    fn first(self) -> Vec<u8> {
        let begin = match self {
            Self::Continuation => frame(HEADERS, 0, 1, &block(CONNECT)),
            Self::EmptyData => frame(HEADERS, END_HEADERS, 1, &block(CONNECT)),
            _ => Vec::new(),
        };
        [hello(), begin].concat()
    }

    /// The frames of one step.
    fn step(self, stream: u32) -> Vec<u8> {
        match self {
            Self::Resets => [
                frame(HEADERS, END_HEADERS, stream, &block(CONNECT)),
                frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            ]
            .concat(),
            Self::MadeYouReset => [
                frame(HEADERS, END_HEADERS, stream, &block(CONNECT)),
                frame(WINDOW_UPDATE, 0, stream, &[0; 4]),
            ]
            .concat(),
            Self::Continuation => frame(CONTINUATION, 0, 1, b"\x00\x07padding\x01x"),
            Self::Pings => frame(PING, 0, 0, &[0; 8]),
            Self::Settings => frame(SETTINGS, 0, 0, &[]),
            Self::EmptyData => frame(DATA, 0, 1, &[]),
        }
    }
}

pub(super) fn frame_floods(context: &Context) -> Result<Times> {
    alone(async || {
        // Only the other agent is dialed.
        let setup = Setup::http_connect()
            .server_arg("--proxy-strategies=defaultRoute")
            .agent("steady", "default-route=true");
        let pair = context.with(setup).start().await?;
        let endpoint = Endpoint::echo().await?;
        let base = Base::of(&pair)?;
        let others = Load::start(pair.frontend(), &endpoint.target(), 2);
        let before = others.next(200).await?;
        let (mut noticed, mut notes) = (Duration::ZERO, Vec::new());
        let resident = pair.server().process.usage()?.rss_mib();
        for kind in KINDS {
            let began = Instant::now();
            // On a separate thread, because the flood keeps it busy.
            let (address, tls) = (pair.server().agent_address(), pair.pki.agent_client()?);
            let flood = move || {
                Builder::new_current_thread().enable_all().build()?.block_on(flooded(address, tls, kind))
            };
            let ended = tokio::task::spawn_blocking(flood).await??;
            let beside = others.since(began, 100).await?;
            let grown = pair.server().process.usage()?.rss_mib().saturating_sub(resident);
            if context.is_native() {
                ensure!(
                    ended.is_some() || !kind.must_end(),
                    "{kind:?}: the server did not end the connection"
                );
                ensure!(grown <= MOST_MIB, "{kind:?}: the server grew by {grown} MiB");
                ensure_calm(before, beside).with_context(|| format!("{kind:?}"))?;
            }
            noticed = noticed.max(ended.unwrap_or_default());
            notes.push(match ended {
                Some(after) => format!("{kind:?} {after:.1?}, +{grown} MiB"),
                None => format!("{kind:?} not ended, +{grown} MiB, p99 {beside:.1?}"),
            });
        }
        ensure!(
            noticed <= Duration::from_secs(1) || !context.is_native(),
            "ended after {noticed:.2?}: {notes:?}"
        );
        let ended = Instant::now();
        drop(others);
        base.back(context, &pair).await?;
        Ok(Times::new(noticed, ended.elapsed()).note(notes.join("; ")))
    })
}

/// Sends frames for [`LASTS`], and reads the server's. Returns when the server ended the connection, if it did.
async fn flooded(address: SocketAddr, tls: Arc<ClientConfig>, kind: Kind) -> Result<Option<Duration>> {
    let socket = tls_socket(address, tls).await?;
    let (mut input, mut output) = tokio::io::split(socket);
    output.write_all(&kind.first()).await?;
    output.flush().await?;
    let began = Instant::now();
    let write = async {
        let mut stream = 3;
        loop {
            let batch: Vec<u8> = (0..BATCH).flat_map(|step| kind.step(stream + 2 * step)).collect();
            stream += 2 * BATCH;
            let written = async {
                output.write_all(&batch).await?;
                output.flush().await
            };
            if written.await.is_err() {
                return;
            }
        }
    };
    let read = async {
        // An error is the end of the connection.
        while read_frame(&mut input).await.is_ok_and(|frame| frame.kind != GOAWAY) {}
    };
    let ended = timeout(LASTS, async {
        tokio::select! { () = write => {}, () = read => {} }
    })
    .await;
    Ok(ended.is_ok().then(|| began.elapsed()))
}
