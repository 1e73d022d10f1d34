//! The lines that show a program's flags at its start: those of the Go program with Go's text and in Go's order, then
//! ours in the same style.

/// One line for each value. `go` has the flags of the Go program with its formats. Supported verbs are `%q`, `%s`,
/// `%v`, `%d`, `%t` and `%f`, and `[%q]` and `[%s]` for lists.
pub fn announce(go: &[(&str, &str)], values: &[(&'static str, String)]) -> Vec<String> {
    let value_of =
        |flag: &str| values.iter().find(|(name, _)| *name == flag).map(|(_, value)| value.as_str());
    let gos = go.iter().filter_map(|(flag, format)| Some(fill(format, value_of(flag)?)));
    let others = values.iter().filter(|(name, _)| go.iter().all(|(flag, _)| flag != name));
    gos.chain(others.map(|(name, value)| fill(&format!("--{name} set to %q."), value))).collect()
}

/// Fills the value into the format.
fn fill(format: &str, value: &str) -> String {
    let Some((before, verb)) = format.split_once('%') else { return format.to_owned() };
    let after = verb.get(1..).unwrap_or_default();
    let items = || value.split(',').filter(|item| !item.is_empty());
    let shown = match (verb.chars().next(), before.ends_with('[')) {
        (Some('q'), true) => items().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(" "),
        (Some('q'), false) => format!("{value:?}"),
        (_, true) => items().collect::<Vec<_>>().join(" "),
        (Some('f'), _) => {
            value.parse().map_or_else(|_| value.to_owned(), |number: f64| format!("{number:.6}"))
        }
        _ => value.to_owned(),
    };
    format!("{before}{shown}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_flags_come_first_in_gos_words_and_order() {
        let values = [
            ("ours", "5".to_owned()),
            ("cert", String::new()),
            ("suites", "A,B".to_owned()),
            ("protos", String::new()),
            ("qps", "2.5".to_owned()),
            ("id", "x".to_owned()),
        ];
        let go = [
            ("id", "ID set to %s."),
            ("cert", "Cert set to %q."),
            ("suites", "Suites set to [%q]."),
            ("protos", "Protos set to [%s]."),
            ("qps", "QPS set to %f."),
            ("gone", "Gone set to %v."),
        ];
        assert_eq!(
            announce(&go, &values),
            [
                "ID set to x.",
                "Cert set to \"\".",
                "Suites set to [\"A\" \"B\"].",
                "Protos set to [].",
                "QPS set to 2.500000.",
                "--ours set to \"5\".",
            ]
        );
    }
}
