//! "Did you mean": the known name that a misspelled one resembles.

use strsim::levenshtein;

/// The known name with the fewest characters to insert, remove or replace: at most a third of them, or 2, or 1 of fewer than 4.
/// Case, `-` and `_` do not count: `serverCaCert` is `server-ca-cert`.
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let most = if length < 4 { 1 } else { (length / 3).max(2) };
    let plain = |name: &str| name.replace(['-', '_'], "").to_lowercase();
    let word = plain(word);
    let near = known
        .into_iter()
        .map(|name| (levenshtein(&word, &plain(name)), name))
        .filter(|(far, _)| *far <= most);
    near.min_by_key(|(far, _)| *far).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_resemble_are_found() {
        let known = [
            "status",
            "probe",
            "top",
            "verbosity",
            "server-count",
            "server-port",
            "server-cert",
            "server-ca-cert",
        ];
        for (word, found) in [
            ("stats", Some("status")),
            ("prob", Some("probe")),
            ("tpo", None),
            ("to", Some("top")),
            ("verbose", None),
            ("verbosty", Some("verbosity")),
            ("server-prot", Some("server-port")),
            ("servercount", Some("server-count")),
            ("serverCaCert", Some("server-ca-cert")),
            ("server_ca_cert", Some("server-ca-cert")),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(closest(word, known), found, "{word}");
        }
    }
}
