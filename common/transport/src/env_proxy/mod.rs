//! HTTP proxies from the environment, for agents that reach their servers through one.
//!
//! The rules are those of Go's `http.ProxyFromEnvironment` for an `https` URL, and the dialling is
//! grpc-go's: plain TCP to the proxy whatever its URL's scheme, then `CONNECT host:port`. Operators
//! depend on both.
//!
//! Never here: TLS, to the proxy or to the server, and credentials in any text.

mod base64;
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
        Self {
            proxy: if https.is_empty() { Ok(None) } else { Proxy::parse(&https).map(Some) },
            no_proxy: NoProxy::parse(&first(["NO_PROXY", "no_proxy"])),
        }
    }

    /// The proxy to use for a server; `None` is to dial it directly.
    ///
    /// # Errors
    /// The environment's URL is not one. As in Go that fails every dial, those that `NO_PROXY`
    /// would exempt included.
    pub fn proxy_for(&self, host: &str, port: u16) -> Result<Option<&Proxy>, ProxyUrlError> {
        let proxy = self.proxy.as_ref().map_err(Clone::clone)?;
        Ok(proxy.as_ref().filter(|_| !self.no_proxy.exempts(host, port)))
    }
}
