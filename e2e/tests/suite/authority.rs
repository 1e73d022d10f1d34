//! Any `:authority` is accepted on the Unix socket: kube-apiserver sends the socket's path there.

use anyhow::{Context, Result, ensure};
use e2e::adversarial::{Authority, dial_with_authority};
use e2e::endpoints::Endpoint;
use e2e::frontend::Place;
use e2e::pair::{Pair, Setup};
use proto::packet::Payload as Body;

async fn accepted(pair: &Pair, endpoint: &Endpoint, authority: Authority<'_>) -> Result<()> {
    let socket = pair.frontend().socket().await?;
    let dialed = dial_with_authority(socket, authority, &endpoint.target()).await;
    let packet = dialed.with_context(|| format!("{authority:?}"))?;
    match packet.payload {
        Some(Body::DialResponse(response)) if response.error.is_empty() && response.random == 7 => Ok(()),
        other => anyhow::bail!("{authority:?}: {other:?}"),
    }
}

#[tokio::test]
async fn any_authority_is_accepted_on_the_unix_socket() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let Place::Unix(path) = &pair.frontend().place else { anyhow::bail!("a Unix socket") };
    let escaped = path.to_str().unwrap_or_default().replace('/', "%2F");
    ensure!(escaped.starts_with("%2F"), "{escaped}");
    let raw = "/etc/kubernetes/konnectivity-server/konnectivity-server.socket";
    let usual = [&escaped, raw, "localhost", "127.0.0.1:8090", "dummy"];
    let unusual = ["%2F", "a/b/c", "%zz", "/", "unix:@abstract", "@abstract", "a b", &"%2F".repeat(200)];
    for authority in usual {
        accepted(&pair, &endpoint, Authority::Huffman(authority)).await?;
    }
    for authority in usual.into_iter().chain(unusual) {
        accepted(&pair, &endpoint, Authority::Raw(authority)).await?;
    }
    Ok(())
}
