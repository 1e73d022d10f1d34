//! HTTP proxies from the environment, for agents that reach their servers through one.
//!
//! The rules are those of Go's `http.ProxyFromEnvironment` for an `https` URL, and the dialling is
//! grpc-go's: plain TCP to the proxy whatever its URL's scheme, then `CONNECT host:port`. Operators
//! depend on both.
//!
//! Never here: TLS, to the proxy or to the server, and credentials in any text.

mod connect;
mod no_proxy;
#[cfg(test)]
mod tests;
mod url;

pub use connect::{ConnectError, PROXY_LIMIT, connect_through, tunnel};
pub use no_proxy::NoProxy;
pub use url::{Proxy, ProxyUrlError};

/// What the environment says about proxies, read once.
#[derive(Debug, Clone)]
pub struct EnvProxy {
    proxy: Result<Option<Proxy>, ProxyUrlError>,
    no_proxy: NoProxy,
}

impl EnvProxy {
    /// Reads `HTTPS_PROXY` or `https_proxy`, and `NO_PROXY` or `no_proxy`: the first that is not empty.
    pub fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// The same, with an environment of the caller's.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: [&str; 2]| {
            let set = names.into_iter().filter_map(&lookup).find(|value| !value.is_empty());
            set.unwrap_or_default()
        };
        let https = first(["HTTPS_PROXY", "https_proxy"]);
        Self { proxy: parse(&https), no_proxy: NoProxy::parse(&first(["NO_PROXY", "no_proxy"])) }
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
fn parse(text: &str) -> Result<Option<Proxy>, ProxyUrlError> {
    if text.is_empty() {
        return Ok(None);
    }
    match Proxy::parse(text) {
        Err(error) if error.is_ignored() => {
            tracing::warn!(%error, "dialling without a proxy");
            Ok(None)
        }
        parsed => parsed.map(Some),
    }
}
