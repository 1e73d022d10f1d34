//! `POST /probe` on the admin port: why a dial goes to which agent, and a dial through one agent.
//!
//! The dial takes the whole way of an HTTP CONNECT client, over a socket pair instead of a listener, so that it counts in
//! all limits, metrics and logs.

use commands::probe::{AfterDial, Protocol, Stage, stages};
use net::query::pairs;
use serve::http::{Routes, with_post};
use status::Probe;
use tokio::net::UnixStream;

use crate::agent_stream::LinkHandle;
use crate::backends::BackendManager;
use crate::dial::Target;
use crate::frontend::Frontend;

/// Adds the route. Without a frontend it only explains which agent a dial would use. A dial from here needs no certificate and no
/// access to the frontend's socket, so every process on the machine could use it.
pub(crate) fn with_probe(
    routes: Routes,
    backends: BackendManager<LinkHandle>,
    frontend: Option<Frontend>,
) -> Routes {
    with_post(routes, "/probe", move |query| {
        let (backends, frontend) = (backends.clone(), frontend.clone());
        async move { probe(&query, &backends, frontend).await }
    })
}

async fn probe(
    query: &str,
    backends: &BackendManager<LinkHandle>,
    frontend: Option<Frontend>,
) -> Result<Probe, String> {
    let pairs = pairs(query).collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let value = |name: &str| {
        pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let (target, agent, then) = (value("target"), value("agent"), value("then"));
    let then = AfterDial::named(&then).ok_or_else(|| format!("then={then}: use tls or http"))?;
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) || !target.contains(':') {
        return Err(format!("target={target}: use HOST:PORT"));
    }
    let selection = backends.explain(&Target::new("tcp", &target).host);
    if agent.is_empty() {
        return Ok(Probe { selection, stages: Vec::new() });
    }
    let mut frontend = frontend.ok_or("the server dials for probes only with --allow-probe-dials")?;
    if backends.streams_of_agent(&agent).is_empty() {
        let note = format!("no connected agent has the id {agent:?}: {} connected", backends.agent_count());
        let missing = Stage { name: "selection".to_owned(), note, ..Stage::default() };
        return Ok(Probe { selection, stages: vec![missing] });
    }
    let selection = format!("agent {agent} was asked for ({selection})");
    let (client, socket) = UnixStream::pair().map_err(|error| error.to_string())?;
    frontend.dialer.only = Some(agent.into());
    // Ends when the socket is attached to its link or closed.
    tokio::spawn(async move { frontend.serve_socket(socket, "probe".into()).await });
    let stages = stages(Box::new(client), Protocol::HttpConnect, (&target, then), async || {}).await;
    Ok(Probe { selection, stages })
}

#[cfg(test)]
mod tests {
    use serve::metrics::Registry;

    use super::*;
    use crate::backends::Strategy;
    use crate::metrics::register;

    #[tokio::test]
    async fn malformed_queries_are_refused() {
        let metrics = register(&mut Registry::default());
        let backends = BackendManager::new(&[Strategy::Default], metrics.routes.clone());
        let ask = async |query| probe(query, &backends, None).await;
        ask("target=a:1").await.unwrap();
        for (query, error) in [
            ("target=a:1&agent=%zz", "invalid URL escape \"%zz\""),
            ("target=a:1&agent=b;c", "invalid semicolon separator in query"),
            ("target=a", "target=a: use HOST:PORT"),
            ("target=a:1&then=x", "then=x: use tls or http"),
        ] {
            assert_eq!(ask(query).await, Err(error.to_owned()), "{query}");
        }
    }
}
