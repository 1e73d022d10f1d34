//! The admin port: metrics, and profiles with `--enable-profiling`.

use http::StatusCode;
use http::uri::Authority;

use super::health::metrics;
use super::profile;
use super::routes::{HTML, Request, Routes, moved, not_found, reply};
use crate::metrics::Exposition;

/// The server's routes, including its metrics.
pub fn server(exposition: Exposition, profiling: bool) -> Routes {
    with_profiles(Routes::default().at("/metrics", move |request| metrics(request, &exposition)), profiling)
}

/// The agent's routes. Its metrics are on the health port, to which this port redirects.
pub fn agent(health_port: u16, profiling: bool) -> Routes {
    let routes = Routes::default().at("/metrics", move |request| {
        let query = request.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        moved(request, &format!("//{}:{health_port}{}{query}", host(request), request.uri.path()))
    });
    with_profiles(routes, profiling)
}

/// The host of the request, without its port, with the brackets of an IPv6 address.
fn host(request: &Request) -> String {
    let header = request.headers.get(http::header::HOST).and_then(|value| value.to_str().ok());
    let asked = header.or(request.uri.authority().map(|authority| authority.as_str())).unwrap_or_default();
    asked.parse::<Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default()
}

const INDEX: &str = "<html><head><title>/debug/pprof/</title></head><body>\n\
    <p>Profiles of this process, in pprof's format:</p>\n\
    <p><a href=\"profile?seconds=30\">profile</a>: where it spends CPU time, over <code>seconds</code></p>\n\
    </body></html>\n";

const ONLY_CPU: &str = "404 no such profile: this program has no garbage collector and no goroutines, \
    only /debug/pprof/profile (CPU time) exists\n";

fn with_profiles(routes: Routes, profiling: bool) -> Routes {
    if !profiling {
        return routes;
    }
    routes
        .at("/debug/pprof", |request| moved(request, "/debug/pprof/"))
        .at("/debug/pprof/", |request| match request.uri.path() {
            "/debug/pprof/" => reply(StatusCode::OK, HTML, INDEX),
            _ => not_found(ONLY_CPU),
        })
        .at_length("/debug/pprof/profile", |request| profile::cpu(profile::seconds(request.uri.query())))
}
