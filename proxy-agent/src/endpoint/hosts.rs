//! The hosts file: names that are resolved without a server.
//!
//! Parsed here and not by the resolver's library, because Go looks up the requested name before it applies search domains; the
//! library would first ask its servers for `name.search.domain`.

use std::collections::HashMap;
use std::net::IpAddr;

/// A parsed hosts file.
#[derive(Debug, Default)]
pub struct Hosts {
    /// Lower-case names without a trailing dot; addresses in the file's order.
    names: HashMap<String, Vec<IpAddr>>,
}

impl Hosts {
    /// Parses a file's text; invalid lines are skipped, as in other resolvers.
    pub fn parse(text: &str) -> Self {
        let mut names: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(Ok(ip)) = words.next().map(str::parse::<IpAddr>) else { continue };
            for name in words {
                let addresses = names.entry(key(name)).or_default();
                if !addresses.contains(&ip.to_canonical()) {
                    addresses.push(ip.to_canonical());
                }
            }
        }
        Self { names }
    }

    /// The addresses of a name, empty if the file has none. Case and a trailing dot do not matter.
    pub fn lookup(&self, name: &str) -> &[IpAddr] {
        self.names.get(&key(name)).map_or(&[], Vec::as_slice)
    }
}

fn key(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_are_found_in_any_case() {
        let hosts =
            Hosts::parse("# top\n127.0.0.1 localhost Box # tail\n::1\tlocalhost\nnonsense x\n10.0.0.1\n");
        let both: [IpAddr; 2] = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        assert_eq!(hosts.lookup("localhost"), both);
        assert_eq!(hosts.lookup("LOCALHOST."), both);
        assert_eq!(hosts.lookup("box"), &both[..1]);
        assert!(hosts.lookup("x").is_empty());
    }
}
