//! "Did you mean": the known name that a misspelled one resembles.

/// The known name with the fewest differing characters: at most a third of them, or 2, or 1 of fewer than 4.
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let most = if length < 4 { 1 } else { (length / 3).max(2) };
    let near = known.into_iter().map(|name| (distance(word, name), name)).filter(|(far, _)| *far <= most);
    near.min_by_key(|(far, _)| *far).map(|(_, name)| name)
}

/// The number of characters to insert, remove or replace.
fn distance(one: &str, two: &str) -> usize {
    let two: Vec<char> = two.chars().collect();
    let mut row: Vec<usize> = (0..=two.len()).collect();
    for (at, left) in one.chars().enumerate() {
        let mut next = vec![at + 1];
        for ((right, pair), last) in two.iter().zip(row.windows(2)).zip(0..) {
            let replaced = pair[0] + usize::from(left != *right);
            next.push(replaced.min(pair[1] + 1).min(next[last] + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_resemble_are_found() {
        let known = ["status", "probe", "top", "verbosity", "server-count", "server-port"];
        for (word, found) in [
            ("stats", Some("status")),
            ("prob", Some("probe")),
            ("tpo", None),
            ("to", Some("top")),
            ("verbose", None),
            ("verbosty", Some("verbosity")),
            ("server-prot", Some("server-port")),
            ("servercount", Some("server-count")),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(closest(word, known), found, "{word}");
        }
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
