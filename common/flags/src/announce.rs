//! The lines that show a program's flags at its start: those of the Go program with Go's text and in Go's order, then
//! ours in the same style.

use crate::{Flag, Given};

impl Given {
    /// One line for each flag. `in_effect` has values that replace the given ones.
    pub fn announce(&self, in_effect: &[(&str, &str)]) -> Vec<String> {
        let values = self.values.iter().map(|(flag, given)| {
            let other = in_effect.iter().find(|(name, _)| name == flag).map(|(_, value)| *value);
            (*flag, other.unwrap_or(given))
        });
        announce(&self.go, &values.collect::<Vec<_>>())
    }
}

/// The names of the Go program's flags and the formats of their lines, in its order.
pub(crate) fn go(flags: &[Flag]) -> Vec<(&'static str, &'static str)> {
    let mut go: Vec<_> = flags.iter().filter_map(|flag| Some((flag.go?, flag.name))).collect();
    go.sort_unstable();
    go.into_iter().map(|((_, format), name)| (name, format)).collect()
}

fn announce(go: &[(&str, &str)], values: &[(&str, &str)]) -> Vec<String> {
    let value_of = |flag: &str| values.iter().find(|(name, _)| *name == flag).map(|(_, value)| *value);
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
        let values =
            [("ours", "5"), ("cert", ""), ("suites", "A,B"), ("protos", ""), ("qps", "2.5"), ("id", "x")];
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
