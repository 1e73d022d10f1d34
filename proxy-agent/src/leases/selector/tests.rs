//! Selectors that Kubernetes accepts and refuses.

use proptest::prelude::*;

use super::LabelSelector;

#[test]
fn accepts_like_kubernetes() {
    let table = [
        "",
        " ",
        "app",
        "!app",
        "! none",
        "app=web",
        "app==web",
        "app = web , n=5",
        "app!=web",
        "tier=",
        "tier=,app",
        "tier!=",
        "app in (api,web)",
        "app in(web)",
        "app notin (api,web)",
        "tier in ()",
        "tier in (,)",
        "tier in (x,)",
        "tier in (x,,y)",
        "in in (in,notin)",
        "in=notin",
        "n>4",
        "n < 5",
        "example.com/app!=x",
    ];
    for text in table {
        let selector = LabelSelector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
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
        "a>-5",
        "a>+5",
        "a\u{c}=b",
        "\u{c}a=b",
        "a=b\u{c}",
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

proptest! {
    #[test]
    fn no_text_panics(text in "(a|in|notin|[-=!<>(), /.]|\\PC){0,20}") {
        let _ = LabelSelector::parse(&text);
    }
}
