//! Agents with service account tokens, with a fake kube-apiserver: admitted and refused agents, the behavior while the API
//! cannot be reached, and that no token is ever logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
pub(crate) use e2e::adversarial::connect_with_token as connect;
use e2e::adversarial::{AdversarialAgent, AgentMeta, refused};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::http1::get;
use e2e::pair::Pair;
use e2e::payload::Payload;
pub(crate) use e2e::tokens::{AUDIENCE, USER, World};
use e2e::wait::{DEADLINE, until, within_limit};
use fake_apiserver::Fault;
use serde_json::json;
use tokio::task::JoinSet;
use tonic::Code;

const CANARY: &str = "canary-of-a-token";

#[tokio::test]
async fn an_agent_with_the_right_token_serves() -> Result<()> {
    let world = World::new().await?;
    world.knows(CANARY, USER, "node-1");
    let pair = world.setup(CANARY)?.start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    assert_eq!(pair.server().metric("agent_auth_mode", &[("mode", "token")]).await?, 1.0);
    pair.server().wait_metric("token_reviews_total", &[("result", "accepted")], 1.0).await?;
    let seen = world.api.seen();
    let review = seen.iter().find(|seen| seen.line.contains("tokenreviews"));
    ensure!(
        review.is_some_and(|seen| seen.authorization == "Bearer canary-of-the-server"),
        "the server's own token"
    );
    Ok(())
}

#[tokio::test]
async fn agents_without_a_valid_token_are_refused_with_gos_words() -> Result<()> {
    let world = World::new().await?;
    world.knows("good", USER, "node-1");
    world.knows("other", "system:serviceaccount:kube-system:default", "node-1");
    let foreign = json!({"username": USER, "extra": {}});
    world.api.set_review("foreign", json!({"authenticated": true, "user": foreign, "audiences": ["other"]}));
    world.api.set_review("broken", json!({"authenticated": false, "error": "token has expired"}));
    let pair = world.setup("good")?.agents(0).start().await?;
    let prefix = "Failed to validate authentication token, err:lookup failed: ";
    let rows = [
        ("unknown", format!("{prefix}service account jwt not valid")),
        (
            "other",
            format!(
                "{prefix}incoming request from \"default\" service account. Expected \"konnectivity-agent\""
            ),
        ),
        ("foreign", format!("{prefix}the token is not for audience {AUDIENCE:?}")),
        ("broken", format!("{prefix}token has expired")),
    ];
    for (token, text) in rows {
        let status = refused(connect(&pair, "a", "", token).await?)?;
        assert_eq!((status.code(), status.message()), (Code::Unknown, text.as_str()));
    }
    let without =
        AdversarialAgent::try_connect(pair.server().agent_port(), &pair.pki, &AgentMeta::new("a", ""))
            .await?;
    let status = refused(without)?;
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unknown, "Authentication context was not found in metadata")
    );
    // An unauthenticated agent is not told about other errors in its metadata, and only a valid id is logged.
    let nonsense = AgentMeta::default().with("agentid", "forged-name").with("agentid", "b");
    let status =
        refused(AdversarialAgent::try_connect(pair.server().agent_port(), &pair.pki, &nonsense).await?)?;
    assert_eq!(status.message(), "Authentication context was not found in metadata");
    pair.server().wait_metric("refused_connects_total", &[("reason", "authentication")], 6.0).await?;
    let known = connect(&pair, "the-known-one", "", "good").await??;
    // Any log line about the unauthenticated agent was written before this one.
    pair.server().process.wait_said("the-known-one").await?;
    ensure!(!pair.server().process.said("forged-name"), "metadata of an unauthenticated peer was logged");
    drop(known);
    Ok(())
}

/// Many agents may share the address of a NAT.
#[tokio::test]
async fn each_reason_to_refuse_an_address_is_logged_with_its_agent() -> Result<()> {
    let world = World::new().await?;
    world.knows("other", "system:serviceaccount:kube-system:default", "node-1");
    let pair = world.setup("unknown")?.server_arg("-v=0").agents(0).start().await?;
    let without = AgentMeta::new("without", "");
    refused(AdversarialAgent::try_connect(pair.server().agent_port(), &pair.pki, &without).await?)?;
    refused(connect(&pair, "foreign", "", "unknown").await?)?;
    refused(connect(&pair, "account", "", "other").await?)?;
    world.api.down();
    refused(connect(&pair, "unasked", "", "late").await?)?;
    for (agent, why) in [
        ("without", "Authentication context was not found"),
        ("foreign", "service account jwt not valid"),
        ("account", "from \\\"default\\\" service account"),
        ("unasked", "the Kubernetes API cannot be asked now"),
    ] {
        let line = until(agent, DEADLINE, || async {
            let field = format!("agentID=\"{agent}\"");
            pair.server().process.log().into_iter().find(|line| line.contains(&field))
        });
        let line = line.await.map_err(|error| pair.server().process.explain(&error))?;
        ensure!(line.contains("Client authentication failed") && line.contains(why), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn while_reviews_fail_known_agents_are_admitted_and_others_retry() -> Result<()> {
    let world = World::new().await?;
    world.knows("known", USER, "node-1");
    world.knows("late", USER, "node-2");
    let mut pair = world.setup("known")?.start().await?;
    let endpoint = Endpoint::echo().await?;
    let conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
    for fault in [None, Some(Fault::Status(500, "InternalError")), Some(Fault::Close)] {
        match fault {
            None => world.api.down(),
            Some(fault) => world.api.set_fault("tokenreviews", fault),
        }
        let status = refused(connect(&pair, "late", "", "late").await?)?;
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        drop(connect(&pair, "again", "", "known").await??);
        world.api.up();
    }
    let conn = echo(conn, Payload::new(2, 100_000)).await?;
    let token = world.token("late", "late")?;
    pair.add_agent("late", "", &[&format!("--service-account-token-path={}", token.display())])?;
    pair.agents[1].process.wait_said("cannot be asked now").await?;
    world.api.heal();
    pair.wait_connected().await?;
    echo(conn, Payload::new(3, 1_000)).await.map(drop)
}

#[tokio::test]
async fn hanging_api_does_not_delay_others() -> Result<()> {
    let world = World::new().await?;
    world.knows("known", USER, "node-1");
    let pair = world.setup("known")?.start().await?;
    world.api.set_fault("tokenreviews", Fault::Hang);
    let stuck = connect(&pair, "stuck", "", "unknown");
    let reviews = world.api.count("tokenreviews");
    let meanwhile = async {
        ensure!(world.api.wait(|api| api.count("tokenreviews") > reviews).await, "no review");
        let endpoint = Endpoint::echo().await?;
        for _ in 0..20 {
            works(pair.frontend(), &endpoint.target()).await?;
        }
        anyhow::Ok(())
    };
    // The review takes 10 s.
    let meanwhile = within_limit("the others", Duration::from_secs(8), meanwhile);
    let (stuck, meanwhile) = tokio::join!(stuck, meanwhile);
    meanwhile??;
    assert_eq!(refused(stuck?)?.code(), Code::Unavailable);
    Ok(())
}

#[tokio::test]
async fn rotated_token_is_presented_at_the_next_connect() -> Result<()> {
    let world = World::new().await?;
    world.knows("first", USER, "node-1");
    let mut pair = world.setup("first")?.start().await?;
    world.api.revoke("first");
    world.knows("second", USER, "node-1");
    world.token("token-first", "second")?;
    pair.server_mut().restart()?;
    pair.server_mut().wait_healthy().await?;
    pair.wait_connected().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

#[tokio::test]
async fn tokens_are_never_logged() -> Result<()> {
    let world = World::new().await?;
    world.knows(CANARY, USER, "node-1");
    let mut pair = world.setup(CANARY)?.server_arg("-v=10").agent_arg("-v=10").start().await?;
    let endpoint = Endpoint::echo().await?;
    works(pair.frontend(), &endpoint.target()).await?;
    refused(connect(&pair, "a", "", "canary-that-is-refused").await?)?;
    world.api.set_fault("tokenreviews", Fault::Status(500, "InternalError"));
    refused(connect(&pair, "a", "", "canary-that-nobody-can-judge").await?)?;
    world.api.set_fault("tokenreviews", Fault::Nonsense);
    refused(connect(&pair, "a", "", "canary-of-nonsense").await?)?;
    world.api.set_review("canary-in-an-error", json!({"error": "bad token canary-in-an-error"}));
    world.api.heal();
    refused(connect(&pair, "a", "", "canary-in-an-error").await?)?;
    refused(connect(&pair, "canary-free", "", "canary-of-bad\tform").await?)?;
    // The server refuses, and the agent logs the reason.
    let wrong = world.token("wrong", "canary-of-an-agent")?;
    pair.add_agent("wrong", "", &[&format!("--service-account-token-path={}", wrong.display())])?;
    pair.agents[1].process.wait_said("jwt not valid").await?;
    let mut texts = vec![pair.server().metrics().await?.text];
    texts.extend(pair.server().process.log());
    let mut admins = vec![pair.server().admin];
    for agent in &pair.agents {
        texts.push(agent.metrics().await?.text);
        texts.extend(agent.process.log());
        admins.push(agent.admin);
    }
    for admin in admins {
        for path in ["/statusz", "/"] {
            texts.extend(get(admin, path).await?.body.lines().map(str::to_owned));
        }
    }
    ensure!(texts.len() > 50, "{} lines at the highest verbosity", texts.len());
    for line in texts.iter().filter(|line| !line.contains("canary-free")) {
        let shown = line.replace("token-canary-of-a-token", "").contains("canary");
        ensure!(!shown, "a token is shown: {line}");
    }
    Ok(())
}

#[tokio::test]
async fn a_storm_of_agents_asks_about_32_at_once() -> Result<()> {
    let world = World::new().await?;
    for n in 0..120 {
        world.knows(&format!("t{n}"), USER, "node-1");
    }
    let pair = Arc::new(world.setup("t0")?.agents(0).start().await?);
    world.api.set_fault("tokenreviews", Fault::Slow(Duration::from_millis(200)));
    let all: JoinSet<_> = (0..120).map(|n| let_in(Arc::clone(&pair), n)).collect();
    let mut tries = 0;
    for outcome in all.join_all().await {
        tries += outcome?;
    }
    let reviews = world.api.count("tokenreviews");
    // Two agents with the same token share a review; on a slow machine one of them may have to retry.
    ensure!(
        reviews >= 60 && reviews - 60 <= tries - 120,
        "{reviews} reviews of 60 tokens in {tries} tries of 120 agents"
    );
    let most = world.api.most_at_once();
    println!("120 agents, 60 tokens, {tries} tries: {reviews} reviews, {most} at once at most");
    ensure!(most <= 32, "{most} reviews at once");
    Ok(())
}

/// An agent that retries until it is admitted, as agents do when a handshake or a review takes too long. Returns the number of
/// attempts.
async fn let_in(pair: Arc<Pair>, number: usize) -> Result<usize> {
    let tries = AtomicUsize::new(0);
    let (id, token) = (format!("a{number}"), format!("t{}", number % 60));
    until(&format!("agent {id} let in"), DEADLINE * 4, || async {
        tries.fetch_add(1, Ordering::Relaxed);
        connect(&pair, &id, "", &token).await.ok()?.ok().map(drop)
    })
    .await?;
    Ok(tries.into_inner())
}
