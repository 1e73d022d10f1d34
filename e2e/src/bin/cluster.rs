//! `cargo run -p e2e --bin cluster`: a real control plane (etcd and kube-apiserver) that runs until Ctrl-C, for manual tests.
//! With `--tunnel`, kube-apiserver reaches a node, its pods and its extensions only through proxy-server and proxy-agent.
//! Builds missing programs, which takes minutes the first time.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, Command};
use e2e::frontend::{Mode, Place};
use e2e::kube::{self, Cluster, Egress, Files, Node, Tools};
use e2e::pair::{Front, Pair, Setup};
use e2e::pki::Pki;
use e2e::ports::Lease;
use tokio::signal::unix::{SignalKind, signal};

/// The values of `--tunnel`.
const TUNNELS: [(&str, Mode, Front); 3] = [
    ("grpc-uds", Mode::Grpc, Front::Unix),
    ("connect-uds", Mode::HttpConnect, Front::Unix),
    ("connect-tls", Mode::HttpConnect, Front::Tls),
];

fn main() -> ExitCode {
    let tunnel = Arg::new("tunnel")
        .long("tunnel")
        .value_parser(TUNNELS.map(|(name, ..)| name))
        .help("How kube-apiserver reaches the node; without it, there is neither a tunnel nor a node");
    let matches =
        Command::new("cluster").about("A real control plane on this machine").arg(tunnel).get_matches();
    let wanted = matches.get_one::<String>("tunnel");
    let tunnel = TUNNELS.into_iter().find(|(name, ..)| wanted.is_some_and(|wanted| wanted == name));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.context("cannot start the runtime").and_then(|runtime| runtime.block_on(run(tunnel)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(tunnel: Option<(&str, Mode, Front)>) -> Result<()> {
    let tools = Tools::find_or_build()?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    println!("Starting etcd and kube-apiserver ...");
    let folder = tempfile::Builder::new().prefix("knp").tempdir()?;
    let up = async {
        match tunnel {
            None => Ok((Cluster::start(&tools, &[]).await?, None)),
            Some((_, mode, front)) => {
                let (cluster, behind) = tunnelled(&tools, folder.path(), mode, front).await?;
                Ok::<_, anyhow::Error>((cluster, Some(behind)))
            }
        }
    };
    let (cluster, _behind) = tokio::select! {
        up = up => up?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    println!("\n  export KUBECONFIG={}", cluster.apiserver().kubeconfig().display());
    println!("  alias kubectl={}\n", tools.kubectl().display());
    println!("Serving until Ctrl-C.");
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    println!("\nStopping.");
    Ok(())
}

/// A cluster that reaches its node through the tunnel, and the endpoints of the node.
async fn tunnelled(
    tools: &Tools,
    folder: &std::path::Path,
    mode: Mode,
    front: Front,
) -> Result<(Cluster, (Pair, Node, Lease))> {
    let pki = Pki::create(folder)?;
    let lease = Lease::new()?;
    let place = match front {
        Front::Unix => Place::Unix(folder.join("server.sock")),
        Front::Tls => Place::Tls(([127, 0, 0, 1], lease.port()).into()),
    };
    let egress = Egress { mode, place: place.clone(), pki: pki.clone() };
    let cluster = Cluster::start(tools, &[egress]).await?;
    let pair = Setup::new(mode, front).places(&[place]).pki(&pki).start().await?;
    let files: &Files = cluster.files();
    let node = Node::start(tools, files).await?;
    kube::nodes(cluster.kubectl(), &node).await?;
    kube::workload(cluster.kubectl(), &node, "default").await?;
    kube::extensions(&cluster, &node).await?;
    println!(
        "Pods app and app-ws run; their logs are NAMESPACE_POD_CONTAINER.log in {}",
        node.logs().display()
    );
    Ok((cluster, (pair, node, lease)))
}
