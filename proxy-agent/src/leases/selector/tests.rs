//! Selectors that Kubernetes accepts and refuses, and the labels that they match.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::LabelSelector;

#[test]
fn selectors_match_labels() {
    let labels = [("app", "web"), ("tier", ""), ("n", "5"), ("in", "notin")];
    let labels: BTreeMap<String, String> = labels.map(|(key, value)| (key.into(), value.into())).into();
    let table = [
        ("", true),
        (" ", true),
        ("app", true),
        ("!app", false),
        ("! none", true),
        ("app=web", true),
        ("app==web", true),
        ("app = web , n=5", true),
        ("app=web,n=6", false),
        ("app!=web", false),
        ("none!=web", true),
        ("tier=", true),
        ("tier=,app", true),
        ("tier!=", false),
        ("app in (api,web)", true),
        ("app in(web)", true),
        ("app notin (api,web)", false),
        ("none notin (api)", true),
        ("tier in ()", true),
        ("tier in (,)", true),
        ("tier in (x,)", true),
        ("tier in (x,,y)", true),
        ("app in ()", false),
        ("in in (in,notin)", true),
        ("in=notin", true),
        ("n>4", true),
        ("n > 5", false),
        ("n<6", true),
        ("app>1", false),
        ("none<1", false),
        ("example.com/app!=x", true),
    ];
    for (text, matches) in table {
        let selector = LabelSelector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(selector.matches(&labels), matches, "{text}");
        assert_eq!(selector.to_string(), text);
    }
}

#[test]
fn rejects_like_kubernetes() {
    let long = format!("a={}", "x".repeat(64));
    let table = [
        ",",
        "a,",
        "a,,b",
        "=",
        "=b",
        "!",
        "!!a",
        "!a=b",
        "a b",
        "a=b c",
        "a=b=c",
        "a=(b)",
        "a in",
        "a in b",
        "a in (b",
        "a in (b c)",
        "a in (=)",
        "a in (b)c",
        "a notin",
        "a>",
        "a>x",
        "a<1.5",
        "a=>b",
        "a<>b",
        "a!b",
        "(a)",
        "a)",
        "-a",
        "a-",
        "a/b/c",
        "/a",
        "a/",
        "A.b/c",
        "a..b/c",
        "a=-",
        "a=b-",
        "a=\u{e9}",
        "\u{e9}",
        &long,
    ];
    for text in table {
        assert!(LabelSelector::parse(text).is_err(), "{text}");
    }
}

#[test]
fn default_matches_its_text() {
    let default = LabelSelector::konnectivity_server();
    assert_eq!(LabelSelector::parse(&default.to_string()), Ok(default));
}

proptest! {
    #[test]
    fn no_text_panics(text in "(a|in|notin|[-=!<>(), /.]|\\PC){0,20}") {
        let _ = LabelSelector::parse(&text);
    }
}
