//! The API server's URL.

use std::fmt;

use net::host_port;

/// The API server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// With TLS, or without (on one machine, behind `kubectl proxy`).
    pub https: bool,
    /// Name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The prefix of `/api` and `/apis`, without a trailing slash.
    pub path: String,
}

impl Server {
    /// Parses `[SCHEME://]HOST[:PORT][/PATH]`.
    ///
    /// # Errors
    /// The fault.
    pub fn parse(url: &str, default_scheme: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").unwrap_or((default_scheme, url));
        let https = scheme.eq_ignore_ascii_case("https");
        if !https && !scheme.eq_ignore_ascii_case("http") {
            return Err("its scheme must be https or http");
        }
        if rest.bytes().any(|byte| byte <= b' ' || byte == 0x7f || byte == b'?' || byte == b'#') {
            return Err("it has blanks, a query or a fragment");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err("it has credentials, which belong to the user's section");
        }
        let (host, port) = host_port::split(authority).ok_or("its brackets are malformed")?;
        if host.is_empty() {
            return Err("it names no host");
        }
        let standard = if https { 443 } else { 80 };
        let port = port.filter(|port| !port.is_empty()).map_or(Ok(standard), str::parse);
        let port = port.map_err(|_| "its port must be a number below 65536")?;
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Self { https, host: host.to_owned(), port, path })
    }

    /// `HOST:PORT`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        host_port::HostPort(&self.host, self.port).to_string()
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let rows = [
            ("https://10.0.0.1", "https://10.0.0.1:443"),
            ("https://[::1]:6443/", "https://[::1]:6443"),
            ("https://host:6443/k8s/clusters/a/", "https://host:6443/k8s/clusters/a"),
            ("http://localhost:8001", "http://localhost:8001"),
            ("localhost", "http://localhost:80"),
            ("HTTPS://10.0.0.1", "https://10.0.0.1:443"),
            ("Http://localhost", "http://localhost:80"),
        ];
        for (text, shown) in rows {
            assert_eq!(Server::parse(text, "http").unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "https://",
            "ftp://a",
            "https://a:b",
            "https://a:70000",
            "https://u:p@a",
            "https://[::1",
            "https://[::1]6",
            "https://a b",
            "https://a/?x",
        ] {
            assert!(Server::parse(bad, "http").is_err(), "{bad}");
        }
    }
}
