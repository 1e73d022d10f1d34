//! Authentication of agents, their claims, authentication of frontends, and the destinations that servers may reach through an
//! agent.

use anyhow::{Result, ensure};
use e2e::adversarial::{AdversarialAgent, AgentMeta};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::frontend::{Mode, Place};
use e2e::pair::{Front, Setup};
use e2e::process::Process;
use e2e::program::Program;
use e2e::wait::{DEADLINE, until};
use tonic::Code;

use crate::tokens::{USER, World, connect};

const UUID: &str = "0d5b1f6e-9c2a-4a8e-8f25-6b7c8d9e0f12";

/// The thief holds node 2's credential and claims node 1's traffic; its source address is shared, as behind SNAT. Without the
/// defense the following fails: with `log` the thief is admitted, and receives node 1's traffic while node 1 is away.
#[tokio::test]
async fn a_stolen_node_credential_takes_no_other_nodes_traffic() -> Result<()> {
    for (binding, let_in) in [("enforce", false), ("log", true), ("off", true)] {
        let world = World::new().await?;
        world.knows("node-1s", USER, "node-1");
        world.knows("node-2s", USER, "node-2");
        let pair = world
            .setup("node-1s")?
            .server_arg("--proxy-strategies=destHost")
            .server_arg(format!("--agent-identity-binding={binding}"))
            .agents(0)
            .start()
            .await?;
        let claims = [
            ("node-1", ""),
            (UUID, "host=node-1"),
            (UUID, "ipv4=10.1.2.3"),
            (UUID, "ipv4=127.0.0.1"),
            (UUID, "cidr=10.0.0.0/8"),
            (UUID, "default-route=true"),
        ];
        for (id, identifiers) in claims {
            let outcome = connect(&pair, id, identifiers, "node-2s").await?;
            assert_eq!(outcome.is_ok(), let_in, "{binding}: {id} {identifiers}");
            if let Err(status) = outcome {
                assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
                ensure!(status.message().contains("does not vouch for"), "{status:?}");
            }
        }
        let mut thief = connect(&pair, UUID, "host=node-1", "node-2s").await?.ok();
        let dial = pair.frontend().dial("node-1:80");
        match &mut thief {
            Some(thief) => {
                let (asked, dialed) = tokio::join!(thief.accept(1), dial);
                assert_eq!(asked?.address, "node-1:80");
                dialed?;
            }
            None => ensure!(dial.await.is_err(), "who should have served it?"),
        }
        // The rightful agent is admitted in both cases.
        let rightful = connect(&pair, "node-1", "host=node-1", "node-1s").await?;
        ensure!(rightful.is_ok(), "{binding}: the rightful agent was refused");
        let (action, other) = if let_in { ("logged", "refused") } else { ("refused", "logged") };
        let counted = pair.server().metric("agent_claims_total", &[("action", action)]).await?;
        assert_eq!(counted > 0.0, binding != "off", "{binding}: {counted}");
        assert_eq!(pair.server().metric("agent_claims_total", &[("action", other)]).await?, 0.0);
        let warned = || pair.server().process.said("agent claims what its identity does not vouch for");
        if binding == "off" {
            ensure!(!warned(), "a warning");
        } else {
            until("a warning", DEADLINE, || async { warned().then_some(()) }).await?;
        }
    }
    Ok(())
}

/// An operator may enable it where nothing translates addresses.
#[tokio::test]
async fn a_source_address_counts_where_it_is_trusted() -> Result<()> {
    let world = World::new().await?;
    world.knows("node-1s", USER, "node-1");
    let setup = world.setup("node-1s")?.server_arg("--agent-identity-binding=enforce");
    let pair = setup.server_arg("--agent-identity-source-address").agents(0).start().await?;
    drop(connect(&pair, "node-1", "ipv4=127.0.0.1", "node-1s").await??);
    ensure!(connect(&pair, "node-1", "ipv4=127.0.0.2", "node-1s").await?.is_err(), "another's address");
    Ok(())
}

#[tokio::test]
async fn agent_id_belongs_to_one_agent_while_it_is_connected() -> Result<()> {
    let world = World::new().await?;
    world.knows("node-1s", USER, "node-1");
    world.knows("node-2s", USER, "node-2");
    let pair =
        world.setup("node-1s")?.server_arg("--agent-identity-binding=enforce").agents(0).start().await?;
    let first = connect(&pair, UUID, "", "node-1s").await??;
    let status = connect(&pair, UUID, "", "node-2s").await?.err();
    assert_eq!(status.map(|status| status.code()), Some(Code::PermissionDenied));
    drop(connect(&pair, UUID, "", "node-1s").await??);
    drop(first);
    pair.server().wait_metric("grpc_connections", &[("service_method", "Connect")], 0.0).await?;
    drop(connect(&pair, UUID, "", "node-2s").await??);
    Ok(())
}

#[tokio::test]
async fn wide_routes_are_for_agents_on_the_list() -> Result<()> {
    let world = World::new().await?;
    world.knows("node-1s", USER, "node-1");
    world.knows("node-2s", USER, "node-2");
    let setup = world.setup("node-1s")?.server_arg("--agent-identity-binding=enforce");
    let pair = setup.server_arg("--default-route-allowed-names=node-1").agents(0).start().await?;
    let wide = "default-route=true&cidr=10.0.0.0/8";
    drop(connect(&pair, "node-1", wide, "node-1s").await??);
    ensure!(connect(&pair, "node-2", wide, "node-2s").await?.is_err(), "node-2 is not on the list");
    Ok(())
}

/// The suite's agents present a certificate with common name `agent` and the alternative name 127.0.0.1.
#[tokio::test]
async fn a_certificate_vouches_for_its_names() -> Result<()> {
    let setup = Setup::grpc().server_arg("--agent-identity-binding=enforce");
    let pair = setup.agent("agent", "host=localhost&ipv4=127.0.0.1&ipv6=::1").start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    for (id, identifiers) in [("agent-1", ""), ("agent", "host=node-1"), ("agent", "ipv4=10.0.0.1")] {
        let meta = AgentMeta::new(id, identifiers);
        let outcome = AdversarialAgent::try_connect(pair.server().agent_port(), &pair.pki, &meta).await?;
        assert_eq!(
            outcome.err().map(|status| status.code()),
            Some(Code::PermissionDenied),
            "{id} {identifiers}"
        );
    }
    assert_eq!(pair.server().metric("agent_auth_mode", &[("mode", "mtls")]).await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn agents_certificates_need_an_allowed_name() -> Result<()> {
    let pair = Setup::grpc().server_arg("--agent-allowed-names=x,agent").start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    let pair = Setup::grpc().server_arg("--agent-allowed-names=x").agents(0).start().await?;
    let meta = AgentMeta::new("a", "");
    let outcome = AdversarialAgent::try_connect(pair.server().agent_port(), &pair.pki, &meta).await?;
    assert_eq!(outcome.err().map(|status| status.code()), Some(Code::PermissionDenied));
    pair.server().wait_metric("name_refusals_total", &[("peer", "agent")], 1.0).await.map(drop)
}

#[tokio::test]
async fn frontends_certificates_need_an_allowed_name() -> Result<()> {
    let endpoint = Endpoint::echo().await?;
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let with = |names: &str| {
            Setup::new(mode, Front::Tls).server_arg(format!("--frontend-allowed-names={names}"))
        };
        let pair = with("x,front-client").start().await?;
        works(pair.frontend(), &endpoint.target()).await?;
        let pair = with("x,front").start().await?;
        ensure!(works(pair.frontend(), &endpoint.target()).await.is_err(), "another frontend dialed");
        ensure!(matches!(pair.frontend().place, Place::Tls(_)), "no name without TLS");
        let scrape = pair.server().metrics().await?;
        ensure!(
            scrape.value("konnectivity_network_proxy_server_name_refusals_total", &[("peer", "frontend")])
                > 0.0,
            "uncounted"
        );
        pair.server().process.wait_said("client refused: ").await?;
        ensure!(pair.server().process.said("front-client at 127.0.0.1"), "the name is not in the log");
    }
    Ok(())
}

/// Permitted, as in Go, but always logged.
#[tokio::test]
async fn an_open_agent_port_is_loud_or_refused() -> Result<()> {
    let open = Setup::grpc().server_arg("--cluster-ca-cert=").agents(0).start().await?;
    open.server().process.wait_said("Agents are not authenticated").await?;
    assert_eq!(open.server().metric("agent_auth_mode", &[("mode", "none")]).await?, 1.0);
    let mut process = Process::spawn(open.recipe(Program::Server, &["--require-agent-auth"])?)?;
    assert_eq!(process.exit(DEADLINE).await?.code(), Some(1));
    process.wait_said("--require-agent-auth needs").await
}

#[tokio::test]
async fn agent_reaches_only_allowed_destinations() -> Result<()> {
    let (endpoint, other) = (Endpoint::echo().await?, Endpoint::echo().await?);
    let port = |endpoint: &Endpoint| endpoint.address().port();
    let deny = format!("--deny-destinations=127.0.0.0/8:{}", port(&other));
    let pair = Setup::http_connect().agent_arg(deny).start().await?;
    works(pair.frontend(), &endpoint.target()).await?;
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost"] {
        let error = works(pair.frontend(), &format!("{host}:{}", port(&other))).await;
        ensure!(error.is_err(), "{host} was reached");
    }
    let allow = format!("--allow-destinations=localhost,127.0.0.1:{}", port(&endpoint));
    let pair = Setup::grpc().agent_arg(allow).start().await?;
    works(pair.frontend(), &endpoint.target()).await?;
    works(pair.frontend(), &format!("localhost:{}", port(&other))).await?;
    let error = works(pair.frontend(), &other.target()).await.err().map(|error| format!("{error:#}"));
    ensure!(error.as_ref().is_some_and(|text| text.contains("no rule allows it")), "{error:?}");
    Ok(())
}

/// By default, and in every notation. No packet leaves this machine, because the agent refuses before it connects.
#[tokio::test]
async fn the_metadata_services_of_clouds_are_out_of_reach() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        // A general rule of the operator does not allow them.
        let pair = Setup::new(mode, Front::Unix).agent_arg("--allow-destinations=*").start().await?;
        for target in [
            "169.254.169.254:80",
            "[::ffff:169.254.169.254]:80",
            "[fd00:ec2::254]:80",
            "[fd20:ce::254]:80",
            "[fd00:c1::a9fe:a9fe]:80",
        ] {
            let Err(error) = pair.frontend().dial(target).await else {
                anyhow::bail!("{target} was reached")
            };
            ensure!(error.text().contains("cloud metadata"), "{target}: {error}");
        }
        works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    }
    Ok(())
}
