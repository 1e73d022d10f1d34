//! Sockets and TLS: admitted clients, and the files of the sockets.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use anyhow::{Result, ensure};
use e2e::adversarial::{AdversarialAgent, AgentMeta, PacketStream, channel, dial_req};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::frontend::{Mode, Place, tls_socket};
use e2e::pair::{Front, Setup};
use e2e::pki::Pki;
use e2e::wait::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test]
async fn the_socket_file_has_mode_0770() -> Result<()> {
    for setup in [Setup::grpc(), Setup::http_connect()] {
        let pair = setup.agents(0).start().await?;
        let Place::Unix(path) = &pair.frontend().place else { anyhow::bail!("a Unix socket") };
        let metadata = std::fs::metadata(path)?;
        ensure!(metadata.file_type().is_socket(), "not a socket");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o770);
    }
    Ok(())
}

#[tokio::test]
async fn stale_socket_file_is_kept_if_configured() -> Result<()> {
    let mut pair = Setup::grpc().agents(0).server_arg("--delete-existing-uds-file=false").start().await?;
    pair.server_mut().process.kill()?;
    pair.server_mut().process.restart()?;
    let status = pair.server_mut().process.exit(e2e::wait::DEADLINE).await?;
    assert_eq!(status.code(), Some(1));
    let Place::Unix(path) = &pair.frontend().place else { anyhow::bail!("a Unix socket") };
    ensure!(path.exists(), "the file is gone");
    Ok(())
}

/// Whether a TLS client without a certificate of that side gets any byte of an answer.
async fn let_in(address: std::net::SocketAddr, pki: &Pki) -> Result<bool> {
    let Ok(mut socket) = tls_socket(address, pki.frontend_client(&["h2"])?).await else {
        return Ok(false);
    };
    // With TLS 1.3 the refusal follows the client's handshake.
    let _ = socket.write_all(&e2e::adversarial::frames::hello()).await;
    let mut byte = [0; 1];
    let read = within("an answer or a refusal", socket.read(&mut byte)).await?;
    Ok(read.is_ok_and(|count| count > 0))
}

#[tokio::test]
async fn the_frontend_port_refuses_the_agents_certificates() -> Result<()> {
    let pair = Setup::new(Mode::Grpc, Front::Tls).start().await?;
    let Place::Tls(address) = pair.frontend().place else { anyhow::bail!("a TLS frontend") };
    let mut agents = pair.pki.clone();
    agents.front_client = pair.pki.agent.clone();
    ensure!(!let_in(address, &agents).await?, "an agent's certificate was let in");
    ensure!(let_in(address, &pair.pki).await?, "the right certificate was not let in");
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

/// Permitted, as in Go: without a client CA and without token flags, any peer can be an agent.
#[tokio::test]
async fn without_a_cluster_ca_agents_need_no_certificate() -> Result<()> {
    let pair = Setup::grpc()
        .server_arg("--cluster-ca-cert=")
        .agent_arg("--agent-cert=")
        .agent_arg("--agent-key=")
        .start()
        .await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

#[tokio::test]
async fn further_alpn_protocols_of_the_agent_do_no_harm() -> Result<()> {
    let pair = Setup::grpc().agent_arg("--alpn-proto=konnectivity,acme").start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

#[tokio::test]
async fn the_server_announces_itself_in_its_headers() -> Result<()> {
    let pair = Setup::grpc().agents(0).server_arg("--server-count=5").start().await?;
    let agent =
        AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &AgentMeta::new("a", "")).await?;
    assert_eq!(agent.server, ("server-0".to_owned(), "5".to_owned()));
    Ok(())
}

#[tokio::test]
async fn the_agents_proxy_variables_are_honoured_but_never_for_loopback() -> Result<()> {
    let mut pair = Setup::grpc().agents(0).start().await?;
    pair.add_agent_with_env("proxied", &[("HTTPS_PROXY", "http://127.0.0.1:1")])?;
    pair.wait_connected().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    let proxy = TcpListener::bind("127.0.0.1:0").await?;
    let mut remote = Setup::grpc().agents(0).agent_arg("--proxy-server-host=far.example").start().await?;
    remote.add_agent_with_env("proxied", &[("HTTPS_PROXY", &format!("http://{}", proxy.local_addr()?))])?;
    let (mut asked, _) = within("the agent at its proxy", proxy.accept()).await??;
    let wanted = format!("CONNECT far.example:{} HTTP/1.1\r\n", remote.server().agent_port());
    let mut line = vec![0; wanted.len()];
    within("the agent's request", asked.read_exact(&mut line)).await??;
    assert_eq!(String::from_utf8_lossy(&line), wanted);
    Ok(())
}

/// The agent port is no frontend: a frontend's stream is unknown there, and dials nothing.
#[tokio::test]
async fn an_agent_cannot_dial() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let socket = tls_socket(pair.server().agent_address(), pair.pki.agent_client()?).await?;
    let mut stream = PacketStream::proxy(channel(Box::new(socket)).await?);
    // The server may refuse before it reads the packet.
    let _ = stream.send(dial_req(1, &endpoint.target())).await;
    let (packets, status) = stream.end("a refusal").await?;
    ensure!(packets.is_empty(), "{packets:?}");
    assert_eq!(status.map(|status| status.code()), Some(tonic::Code::Unimplemented));
    Ok(())
}
