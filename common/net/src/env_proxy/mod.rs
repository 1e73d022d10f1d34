//! HTTP proxies: the choice of a proxy by the environment, and the tunnel through it.
//!
//! The choice follows Go's `http.ProxyFromEnvironment`. Go dials proxies in two ways: agents reach their servers by
//! grpc-go (plain TCP to the proxy whatever its URL's scheme, then `CONNECT host:port`), and Kubernetes clients reach
//! the API by net/http (the scheme counts). Operators depend on both.
//!
//! Never here: TLS to the proxy or to the server, and credentials in any text.

mod connect;
mod no_proxy;
#[cfg(test)]
mod tests;
mod url;

pub use connect::{ConnectError, PROXY_TIMEOUT, tunnel};
pub use no_proxy::NoProxy;
pub use url::{Proxy, ProxyUrlError};

/// The proxy settings of the environment, read once.
#[derive(Clone)]
pub struct EnvProxy {
    proxy: Result<Option<Proxy>, ProxyUrlError>,
    no_proxy: NoProxy,
}

impl EnvProxy {
    /// For dialing as grpc-go does: reads `HTTPS_PROXY` or `https_proxy`, and `NO_PROXY` or `no_proxy`; of each pair
    /// the first that is not empty. `lookup` reads the environment.
    pub fn for_grpc(lookup: impl Fn(&str) -> Option<String>) -> Self {
        Self::read("HTTPS_PROXY", Proxy::parse, lookup)
    }

    /// For dialing as net/http does: URLs with the scheme `https` use the variables above, those with `http` use
    /// `HTTP_PROXY` or `http_proxy`.
    pub fn for_http(https: bool, lookup: impl Fn(&str) -> Option<String>) -> Self {
        let name = if https { "HTTPS_PROXY" } else { "HTTP_PROXY" };
        Self::read(name, Proxy::parse_for_http, lookup)
    }

    fn read(
        name: &'static str,
        parse: impl Fn(&'static str, &str) -> Result<Proxy, ProxyUrlError>,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let first = |name: &str| {
            let names = [name.to_owned(), name.to_lowercase()];
            let set = names.iter().filter_map(|name| lookup(name)).find(|value| !value.is_empty());
            set.unwrap_or_default()
        };
        let url = first(name);
        let parsed = (!url.is_empty()).then(|| parse(name, &url));
        let proxy = match parsed.transpose() {
            // Go silently ignores a URL that it cannot parse, and dials directly; we do the same, with a warning.
            Err(error) if error.ignored => {
                tracing::warn!(%error, "dialing without a proxy");
                Ok(None)
            }
            parsed => parsed,
        };
        Self { proxy, no_proxy: NoProxy::parse(&first("NO_PROXY")) }
    }

    /// The proxy for a server; `None` means to dial it directly.
    ///
    /// # Errors
    /// If the environment's URL is not a usable proxy, and the server is not exempt.
    pub fn proxy_for(&self, host: &str, port: u16) -> Result<Option<&Proxy>, ProxyUrlError> {
        if self.no_proxy.exempts(host, port) {
            return Ok(None);
        }
        self.proxy.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }
}
