//! Any `:authority` is accepted on the Unix socket: kube-apiserver sends the socket's path there.

use anyhow::{Result, ensure};
use e2e::adversarial::{Authority, dial_with_authority};
use e2e::endpoints::Endpoint;
use e2e::frontend::Place;
use e2e::pair::{Pair, Setup};
use proto::packet::Payload as Body;

async fn accepted(pair: &Pair, endpoint: &Endpoint, authority: Authority<'_>) -> Result<()> {
    let socket = pair.frontend().socket().await?;
    let packet = dial_with_authority(socket, authority, &endpoint.target()).await?;
    match packet.payload {
        Some(Body::DialResponse(response)) if response.error.is_empty() && response.random == 7 => Ok(()),
        other => anyhow::bail!("{authority:?}: {other:?}"),
    }
}

#[tokio::test]
async fn the_escaped_path_of_the_socket() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let Place::Unix(path) = &pair.frontend().place else { anyhow::bail!("a Unix socket") };
    let path = path.to_str().unwrap_or_default();
    let escaped = path.replace('/', "%2F");
    ensure!(escaped.starts_with("%2F"), "{escaped}");
    accepted(&pair, &endpoint, Authority::Huffman(&escaped)).await?;
    accepted(&pair, &endpoint, Authority::Raw(&escaped)).await
}

#[tokio::test]
async fn the_raw_path_of_the_socket() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let path = "/etc/kubernetes/konnectivity-server/konnectivity-server.socket";
    accepted(&pair, &endpoint, Authority::Huffman(path)).await?;
    accepted(&pair, &endpoint, Authority::Raw(path)).await
}

#[tokio::test]
async fn ordinary_ones() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    for authority in ["localhost", "127.0.0.1:8090", "dummy"] {
        accepted(&pair, &endpoint, Authority::Raw(authority)).await?;
        accepted(&pair, &endpoint, Authority::Huffman(authority)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn unusual_values() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let long = "%2F".repeat(200);
    for authority in ["%2F", "a/b/c", "%zz", "/", "unix:@abstract", "@abstract", "a b", long.as_str()] {
        accepted(&pair, &endpoint, Authority::Raw(authority)).await?;
    }
    Ok(())
}
