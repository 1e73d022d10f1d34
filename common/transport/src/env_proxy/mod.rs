//! HTTP proxies: which one a server has by the environment, and the tunnel through it.
//!
//! Which one is said by the rules of Go's `http.ProxyFromEnvironment`. How it is dialled differs in Go by who dials:
//! agents reach their servers by grpc-go (plain TCP to the proxy whatever its URL's scheme, then `CONNECT host:port`), the
//! Kubernetes API is reached by net/http (the scheme counts). Operators depend on all of it.
//!
//! Never here: TLS, to the proxy or to the server, and credentials in any text.

mod connect;
mod no_proxy;
#[cfg(test)]
mod tests;
mod url;

pub use connect::{ConnectError, PROXY_LIMIT, tunnel};
pub use no_proxy::NoProxy;
pub use url::{Proxy, ProxyUrlError};

/// What the environment says about proxies, read once.
#[derive(Debug, Clone)]
pub struct EnvProxy {
    proxy: Result<Option<Proxy>, ProxyUrlError>,
    no_proxy: NoProxy,
}

impl EnvProxy {
    /// For grpc-go's dialling: reads `HTTPS_PROXY` or `https_proxy`, and `NO_PROXY` or `no_proxy`: the first that is not
    /// empty.
    pub fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// The same, with an environment of the caller's.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        Self::read("HTTPS_PROXY", Proxy::parse, lookup)
    }

    /// For net/http's dialling of URLs whose scheme is `https`, or of those whose scheme is `http`: these have
    /// `HTTP_PROXY` or `http_proxy`.
    pub fn for_http(https: bool, lookup: impl Fn(&str) -> Option<String>) -> Self {
        let name = if https { "HTTPS_PROXY" } else { "HTTP_PROXY" };
        Self::read(name, Proxy::parse_for_http, lookup)
    }

    fn read(
        name: &'static str,
        parse: impl Fn(&str) -> Result<Proxy, ProxyUrlError>,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let first = |name: &str| {
            let names = [name.to_owned(), name.to_lowercase()];
            let set = names.iter().filter_map(|name| lookup(name)).find(|value| !value.is_empty());
            set.unwrap_or_default()
        };
        let url = first(name);
        let parsed = (!url.is_empty()).then(|| parse(&url).map_err(|error| error.found_in(name)));
        Self { proxy: ignoring(parsed.transpose()), no_proxy: NoProxy::parse(&first("NO_PROXY")) }
    }

    /// The proxy to use for a server; `None` is to dial it directly.
    ///
    /// # Errors
    /// The environment's URL names no usable proxy, and the server is not exempt.
    pub fn proxy_for(&self, host: &str, port: u16) -> Result<Option<&Proxy>, ProxyUrlError> {
        if self.no_proxy.exempts(host, port) {
            return Ok(None);
        }
        self.proxy.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }
}

/// What Go cannot even parse it passes over in silence, and dials directly; so do we, with a warning.
fn ignoring(parsed: Result<Option<Proxy>, ProxyUrlError>) -> Result<Option<Proxy>, ProxyUrlError> {
    match parsed {
        Err(error) if error.is_ignored() => {
            tracing::warn!(%error, "dialling without a proxy");
            Ok(None)
        }
        parsed => parsed,
    }
}
