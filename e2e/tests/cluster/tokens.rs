//! Real service account tokens: bound to pods, for other audiences, of other accounts, expired, revoked, stolen.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use e2e::adversarial::{connect_with_token, refused};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::wait::until;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use tonic::Code;

use crate::world::World;

const UUID: &str = "f3b2a1c0-1d2e-4f50-8a6b-7c8d9e0f1a2b";

pub(crate) async fn a_bound_token_lets_its_agent_in(world: Arc<World>) -> Result<()> {
    let installation = world.install("bound").await?;
    let token = installation.agent_token("agent", "node-1").await?;
    let path = installation.file("token", &format!("{token}\n"))?;
    let setup = installation.with_tokens().await?.server_arg("--agent-identity-binding=enforce");
    let setup = setup.agent_arg(format!("--service-account-token-path={path}"));
    let pair = setup.agent("node-1", "host=node-1").start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

pub(crate) async fn other_tokens_do_not(world: Arc<World>) -> Result<()> {
    let installation = world.install("others").await?;
    let pair = installation.with_tokens().await?.start().await?;
    let prefix = "Failed to validate authentication token, err:lookup failed: ";
    let good = installation.agent_token("agent", "node-1").await?;
    let foreign = world.install("foreign").await?.agent_token("agent", "node-1").await?;
    let rows = [
        (
            installation.agent_token("other", "node-1").await?,
            "incoming request from \"other\" service account",
        ),
        (foreign, "incoming request from \"foreign\" namespace"),
        // A token for the API only.
        (installation.api_token("agent").await?, "is invalid for the target audiences"),
        (expired(&world, &good)?, "expired"),
        (format!("{good}x"), "go-jose: error in cryptographic primitive"),
    ];
    for (token, text) in rows {
        let status = refused(connect_with_token(&pair, UUID, "", &token).await?)?;
        assert_eq!(status.code(), Code::Unknown, "{status:?}");
        ensure!(
            status.message().starts_with(prefix) && status.message().contains(text),
            "{text:?} in {status:?}"
        );
        println!("        refused: {}", status.message());
    }
    drop(connect_with_token(&pair, UUID, "", &good).await??);
    Ok(())
}

/// The pod is deleted, and with it all tokens bound to it.
pub(crate) async fn a_revoked_token_does_not(world: Arc<World>) -> Result<()> {
    let installation = world.install("revoked").await?;
    let setup = installation.with_tokens().await?.server_arg("--token-review-interval=1m");
    let pair = setup.start().await?;
    let token = installation.agent_token("agent", "node-1").await?;
    let mut live = connect_with_token(&pair, UUID, "", &token).await??;
    installation.kubectl(&["delete", "pod", "agent-node-1", "--grace-period=0", "--force"]).await?;
    // The verdict is cached for a minute; then the API is asked again, for new streams and for the open one.
    let status = until("its refusal", Duration::from_secs(100), || async {
        connect_with_token(&pair, UUID, "", &token).await.ok()?.err()
    });
    let status = status.await?;
    assert_eq!(status.code(), Code::Unknown, "{status:?}");
    println!("        refused: {}", status.message());
    let (_, end) = tokio::time::timeout(Duration::from_secs(130), live.stream.end("the live stream's end"))
        .await
        .unwrap_or_else(|_| Ok((Vec::new(), Some(tonic::Status::deadline_exceeded("it lives on")))))?;
    ensure!(end.is_none(), "{end:?}");
    Ok(())
}

/// The API server itself reports the node of a token's pod.
pub(crate) async fn a_thief_takes_no_other_nodes_traffic(world: Arc<World>) -> Result<()> {
    let installation = world.install("thief").await?;
    let stolen = installation.agent_token("agent", "node-2").await?;
    let rightful = installation.agent_token("agent", "node-1").await?;
    let setup = installation.with_tokens().await?.server_arg("--proxy-strategies=destHost");
    let pair = setup.server_arg("--agent-identity-binding=enforce").start().await?;
    for (id, identifiers) in
        [("node-1", ""), (UUID, "host=node-1"), (UUID, "ipv4=10.0.0.1"), (UUID, "default-route=true")]
    {
        let status = connect_with_token(&pair, id, identifiers, &stolen)
            .await?
            .err()
            .context("the thief was let in")?;
        assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    }
    drop(connect_with_token(&pair, "node-2", "host=node-2", &stolen).await??);
    let mut rightful = connect_with_token(&pair, "node-1", "host=node-1", &rightful).await??;
    let (asked, dialed) = tokio::join!(rightful.accept(1), pair.frontend().dial("node-1:80"));
    assert_eq!(asked?.address, "node-1:80");
    dialed?;
    Ok(())
}

/// The same token with times in the past, signed again with the cluster's own key.
fn expired(world: &World, token: &str) -> Result<String> {
    let mut parts = token.split('.');
    let (header, claims) = (parts.next().context("a header")?, parts.next().context("claims")?);
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?;
    let issued = claims["iat"].as_i64().context("iat")?;
    for (name, at) in [("iat", issued - 7_200), ("nbf", issued - 7_200), ("exp", issued - 3_600)] {
        claims[name] = at.into();
    }
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let key = PrivatePkcs8KeyDer::from_pem_file(&world.cluster.files().tokens.key)?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_pkcs8_der())?;
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
}
