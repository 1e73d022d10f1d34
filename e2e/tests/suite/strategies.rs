//! The choice of the agent for a dial. The agents are test-controlled, so that the test sees which one got the dial.

use std::task::Poll;

use anyhow::{Result, ensure};
use e2e::adversarial::{AdversarialAgent, AgentMeta, close_rsp, dial_rsp, drain};
use e2e::frontend::Tunnel;
use e2e::pair::{Pair, Setup};
use e2e::wait::within;
use proto::Packet;
use proto::packet::Payload as Body;

/// A server with these strategies and no agent.
async fn server(strategies: &str) -> Result<Pair> {
    Setup::grpc().agents(0).server_arg(format!("--proxy-strategies={strategies}")).start().await
}

async fn agent(pair: &Pair, id: &str, identifiers: &str) -> Result<AdversarialAgent> {
    let before = connects(pair).await?;
    let agent =
        AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &AgentMeta::new(id, identifiers))
            .await?;
    // The server may register the stream a moment after it has sent its headers.
    pair.server().wait_metric("grpc_connections", &[("service_method", "Connect")], before + 1.0).await?;
    Ok(agent)
}

async fn connects(pair: &Pair) -> Result<f64> {
    pair.server().metric("grpc_connections", &[("service_method", "Connect")]).await
}

/// Dials, and returns which of the agents got the dial; that agent accepts. The connection is dropped at once.
async fn asked(pair: &Pair, target: &str, agents: &mut [AdversarialAgent]) -> Result<usize> {
    let (frontend, address) = (pair.frontend().clone(), target.to_owned());
    let mut dial = tokio::spawn(async move { Tunnel::dial(frontend.packets().await?, &address).await });
    loop {
        let (index, packet) = tokio::select! {
            biased;
            first = within("a DIAL_REQ at some agent", first_packet(agents)) => first?,
            // The server refused: no agent got the dial.
            Ok(Err(error)) = &mut dial => anyhow::bail!("{error}"),
        };
        match packet.payload {
            Some(Body::DialRequest(request)) => {
                ensure!(request.protocol == "tcp" && request.address == target, "{request:?}");
                let id = i64::from(rand::random::<u32>()) + 1;
                agents[index].stream.send(dial_rsp(request.random, id, "")).await?;
                within("the dial", dial).await???;
                return Ok(index);
            }
            // The end of an earlier connection.
            Some(Body::CloseRequest(close)) => {
                agents[index].stream.send(close_rsp(close.connect_id, "")).await?
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
}

/// The first packet that arrives at any of the agents.
async fn first_packet(agents: &mut [AdversarialAgent]) -> (usize, Packet) {
    std::future::poll_fn(|cx| {
        for (index, agent) in agents.iter_mut().enumerate() {
            if let Poll::Ready(Ok(Some(packet))) = agent.stream.poll_next(cx) {
                return Poll::Ready((index, packet));
            }
        }
        Poll::Pending
    })
    .await
}

#[tokio::test]
async fn default_spreads_over_all_agents() -> Result<()> {
    let pair = server("default").await?;
    let mut agents =
        [agent(&pair, "a", "").await?, agent(&pair, "b", "").await?, agent(&pair, "c", "").await?];
    let mut counts = [0; 3];
    // The probability that one of three agents gets none of 40 random dials is 3 in 10 million.
    for _ in 0..40 {
        counts[asked(&pair, "127.0.0.1:9", &mut agents).await?] += 1;
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    Ok(())
}

#[tokio::test]
async fn dest_host_asks_the_agent_that_names_the_host() -> Result<()> {
    let pair = server("destHost").await?;
    let mut agents = [
        agent(&pair, "a", "ipv4=10.0.0.1&ipv4=10.0.0.2&host=Node-A").await?,
        agent(&pair, "b", "ipv6=fd00::b&host=node-b&uid=unknown-keys-are-ignored").await?,
    ];
    for (target, expected) in
        [("10.0.0.1:443", 0), ("10.0.0.2:1", 0), ("Node-A:80", 0), ("node-b:80", 1), ("[fd00::b]:443", 1)]
    {
        assert_eq!(asked(&pair, target, &mut agents).await?, expected, "{target}");
    }
    for target in ["node-a:80", "10.0.0.3:443", "10.0.0.11:443", "unknown-keys-are-ignored:1"] {
        let error = pair.frontend().dial_error(target).await?;
        assert_eq!(error.text(), "No agent available", "{target}");
    }
    Ok(())
}

#[tokio::test]
async fn dest_host_spreads_over_the_agents_of_a_host_or_takes_the_first_one() -> Result<()> {
    for (selection, all) in [("least-loaded", [true, true]), ("random", [true, false])] {
        let flags = ["--proxy-strategies=destHost".to_owned(), format!("--agent-selection={selection}")];
        let pair = flags.into_iter().fold(Setup::grpc().agents(0), Setup::server_arg).start().await?;
        let mut agents =
            [agent(&pair, "first", "host=shared").await?, agent(&pair, "second", "host=shared").await?];
        let mut got = [false; 2];
        // The probability that one of two agents gets none of 30 random dials is 2 in a thousand million.
        for _ in 0..30 {
            got[asked(&pair, "shared:1", &mut agents).await?] = true;
        }
        assert_eq!(got, all, "{selection}");
    }
    Ok(())
}

#[tokio::test]
async fn the_preferred_zone_comes_first() -> Result<()> {
    let pair = Setup::grpc().agents(0).server_arg("--prefer-zone=near").start().await?;
    let far = agent(&pair, "a", "zone=far").await?;
    pair.server().process.wait_said("no connected agent is in the zone of --prefer-zone").await?;
    let ready = e2e::http1::get(pair.servers[0].health, "/readyz?verbose").await?;
    assert!(
        ready.body.contains("[+]backends ok: no agent has zone=near of --prefer-zone\n"),
        "{}",
        ready.body
    );
    let mut agents = [far, agent(&pair, "b", "zone=near").await?];
    for _ in 0..10 {
        assert_eq!(asked(&pair, "127.0.0.1:9", &mut agents).await?, 1);
    }
    agents[1].stream.send(drain()).await?;
    pair.server().process.wait_said("marked backend as draining").await?;
    assert_eq!(asked(&pair, "127.0.0.1:9", &mut agents).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_strategy_without_a_match_passes_on_to_the_next() -> Result<()> {
    let pair = server("destHost,defaultRoute,default").await?;
    let mut agents = [
        agent(&pair, "plain", "").await?,
        agent(&pair, "route", "default-route=true").await?,
        agent(&pair, "host", "host=named").await?,
    ];
    for _ in 0..5 {
        assert_eq!(asked(&pair, "named:1", &mut agents).await?, 2);
        assert_eq!(asked(&pair, "elsewhere:1", &mut agents).await?, 1);
    }
    Ok(())
}

#[tokio::test]
async fn default_route_wants_the_value_true_and_the_first_one_counts() -> Result<()> {
    let pair = server("defaultRoute").await?;
    let mut agents = [
        agent(&pair, "a", "default-route=false").await?,
        agent(&pair, "b", "default-route=false&default-route=true").await?,
        agent(&pair, "c", "default-route=true&default-route=false").await?,
    ];
    for _ in 0..10 {
        assert_eq!(asked(&pair, "127.0.0.1:9", &mut agents).await?, 2);
    }
    Ok(())
}

#[tokio::test]
async fn the_order_of_the_strategies_counts() -> Result<()> {
    let pair = server("default,destHost").await?;
    let mut agents = [agent(&pair, "plain", "").await?, agent(&pair, "host", "host=named").await?];
    let mut counts = [0; 2];
    for _ in 0..40 {
        counts[asked(&pair, "named:1", &mut agents).await?] += 1;
    }
    assert!(counts[0] > 0, "destHost won although default comes first: {counts:?}");
    Ok(())
}

/// Sends a DRAIN and waits until the server has counted it.
async fn start_drain(pair: &Pair, agent: &mut AdversarialAgent) -> Result<()> {
    let labels = [("segment", "from_agent"), ("packet_type", "DRAIN")];
    let before = pair.server().metric("stream_packets_total", &labels).await?;
    agent.stream.send(drain()).await?;
    pair.server().wait_metric("stream_packets_total", &labels, before + 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn a_draining_agent_gets_no_new_dials_while_there_is_another() -> Result<()> {
    let pair = server("default").await?;
    let mut agents = [agent(&pair, "a", "").await?, agent(&pair, "b", "").await?];
    start_drain(&pair, &mut agents[0]).await?;
    for _ in 0..20 {
        assert_eq!(asked(&pair, "127.0.0.1:9", &mut agents).await?, 1);
    }
    Ok(())
}

#[tokio::test]
async fn a_draining_agent_is_asked_when_it_is_the_last() -> Result<()> {
    let pair = server("default").await?;
    let mut agents = [agent(&pair, "a", "").await?];
    start_drain(&pair, &mut agents[0]).await?;
    assert_eq!(asked(&pair, "127.0.0.1:9", &mut agents).await?, 0);
    Ok(())
}

/// A Go server prefers a draining match to a healthy agent of the next strategy.
#[tokio::test]
async fn a_healthy_agent_of_the_next_strategy_beats_a_draining_match() -> Result<()> {
    let pair = server("destHost,default").await?;
    let mut agents = [agent(&pair, "named", "host=named").await?, agent(&pair, "plain", "").await?];
    start_drain(&pair, &mut agents[0]).await?;
    for _ in 0..10 {
        assert_eq!(asked(&pair, "named:1", &mut agents).await?, 1);
    }
    Ok(())
}

#[tokio::test]
async fn the_second_stream_of_an_agent_is_used_when_the_first_drains() -> Result<()> {
    let pair = server("default").await?;
    let mut agents = [agent(&pair, "twin", "").await?, agent(&pair, "twin", "").await?];
    for _ in 0..5 {
        assert_eq!(asked(&pair, "127.0.0.1:9", &mut agents).await?, 0);
    }
    start_drain(&pair, &mut agents[0]).await?;
    for _ in 0..5 {
        assert_eq!(asked(&pair, "127.0.0.1:9", &mut agents).await?, 1);
    }
    Ok(())
}

#[tokio::test]
async fn readiness_follows_the_first_strategy() -> Result<()> {
    let mut pair = server("destHost,default").await?;
    let plain = agent(&pair, "plain", "").await?;
    let answer = e2e::http1::get(pair.server().health, "/readyz").await?;
    assert_eq!((answer.head.status, answer.body.as_str()), (500, "no connection to any proxy agent"));
    let named = agent(&pair, "named", "host=named").await?;
    pair.server_mut().wait_ready().await?;
    drop(named);
    pair.server_mut().wait_unready().await?;
    drop(plain);
    Ok(())
}

#[tokio::test]
async fn ready_backends_are_counted_per_strategy() -> Result<()> {
    let pair = server("destHost,default,defaultRoute").await?;
    let agents = [
        agent(&pair, "plain", "").await?,
        agent(&pair, "route", "default-route=true").await?,
        agent(&pair, "named", "host=a&ipv4=10.0.0.1").await?,
    ];
    pair.server().wait_metric("ready_backends", &[("proxy_strategy", "default")], 3.0).await?;
    pair.server().wait_metric("ready_backends", &[("proxy_strategy", "defaultRoute")], 1.0).await?;
    // Its host and its address.
    pair.server().wait_metric("ready_backends", &[("proxy_strategy", "destHost")], 2.0).await?;
    drop(agents);
    pair.server().wait_metric("ready_backends", &[("proxy_strategy", "default")], 0.0).await?;
    pair.server().wait_metric("ready_backends", &[("proxy_strategy", "defaultRoute")], 0.0).await?;
    pair.server().wait_metric("ready_backends", &[("proxy_strategy", "destHost")], 0.0).await?;
    Ok(())
}

#[tokio::test]
async fn connect_names_the_agent_exactly_once() -> Result<()> {
    let pair = server("default").await?;
    let refused = [
        AgentMeta::default(),
        AgentMeta::default().with("agentidentifiers", ""),
        AgentMeta::new("a", "").with("agentid", "b"),
        AgentMeta::new("a", "host=x").with("agentidentifiers", "host=y"),
        AgentMeta::new("a", "host=%zz"),
    ];
    for meta in refused {
        let connect = AdversarialAgent::try_connect(pair.server().agent_port(), &pair.pki, &meta).await?;
        ensure!(connect.is_err(), "{meta:?} was let in");
    }
    // An agent may send no identifiers.
    let meta = AgentMeta::default().with("agentid", "a");
    let agent = AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &meta).await?;
    assert_eq!(agent.server, ("server-0".to_owned(), "1".to_owned()));
    Ok(())
}
