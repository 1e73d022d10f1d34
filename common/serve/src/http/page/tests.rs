//! Rendered documents: what they say, where their links lead, and that no text becomes markup.

use status::{
    Agent, Build, Certificate, Connection, Failure, Flag, Health, Interval, Kubernetes, Listener, Refused,
    Server, Totals,
};

use super::*;

const NOW: &str = "2026-07-01T12:00:00.000Z";

/// A server with three agents, of which the second one fails.
fn server() -> Status {
    let agent = |at: u64| Agent {
        id: format!("node-{at}"),
        identity: format!("system:node:{at}"),
        addresses: vec![format!("10.0.0.{at}:40000")],
        native: at != 3,
        version: if at == 3 { String::new() } else { "0.36.0".to_owned() },
        since: "2026-07-01T09:55:00.000Z".to_owned(),
        rtt_seconds: Some(0.0123),
        connections: 1_000 * at,
        bytes_to_agent: 5 << 20,
        state: "ready".to_owned(),
        ..Agent::default()
    };
    let mut agents = vec![agent(1), agent(2), agent(3)];
    agents[1].state = "ejected".to_owned();
    agents[1].reason = "its dials fail, those of others do not; tried again in 20 s".to_owned();
    agents[1].dials_failed = 7;
    agents[1].last_failure = "too many open files".to_owned();
    agents[1].last_failed = "2026-07-01T11:59:40.000Z".to_owned();
    let failure = Failure {
        time: "2026-07-01T11:59:48.000Z".to_owned(),
        target: "10.1.2.3:10250".to_owned(),
        peer: "node-2".to_owned(),
        reason: "endpoint".to_owned(),
        error: "connect: connection refused".to_owned(),
        seconds: 0.0021,
    };
    let certificate = |not_after: &str, side: &str| Certificate {
        side: side.to_owned(),
        role: "presented".to_owned(),
        source: format!("--{side}-cert /pki/{side}.crt"),
        subject: format!("CN={side}"),
        issuer: "CN=authority".to_owned(),
        not_after: not_after.to_owned(),
        change_refused: if side == "frontend" { "no END line".to_owned() } else { String::new() },
        ..Certificate::default()
    };
    Status {
        version: status::VERSION,
        build: Build { program: "proxy-server".to_owned(), version: "0.36.0".to_owned(), fips: false },
        started: "2026-07-01T09:54:00.000Z".to_owned(),
        now: NOW.to_owned(),
        id: "server-1".to_owned(),
        health: vec![Health { name: "agents".to_owned(), ok: true, note: String::new() }],
        flags: vec![Flag { name: "mode".to_owned(), value: "grpc".to_owned() }],
        listeners: vec![Listener {
            name: "agents".to_owned(),
            address: "0.0.0.0:8091".to_owned(),
            protocol: "grpc".to_owned(),
        }],
        certificates: vec![
            certificate("2027-07-01T00:00:00.000Z", "agents"),
            certificate("2026-07-05T00:00:00.000Z", "frontend"),
            certificate("2026-07-20T12:00:00.000Z", "kubeconfig"),
        ],
        totals: Totals {
            agents: 3,
            agents_unhealthy: 1,
            connections: 12,
            dials: 1_234,
            failed_dials: 7,
            ..Totals::default()
        },
        agents,
        connections: vec![
            Connection {
                id: 1,
                peer: "node-1".to_owned(),
                target: "10.1.1.1:443".to_owned(),
                ..Connection::default()
            },
            Connection {
                id: 2,
                peer: "node-3".to_owned(),
                target: "10.1.1.3:443".to_owned(),
                queued: 1 << 20,
                stalled_seconds: Some(12.0),
                client: "certificate kube-apiserver at 10.0.0.5:40000".to_owned(),
                ..Connection::default()
            },
        ],
        failures: vec![failure],
        history: vec![Interval { dials: 100, failures: 0 }, Interval { dials: 26, failures: 1 }],
        kubernetes: Some(Kubernetes { lease: "konnectivity-1, renewed".to_owned(), ..Kubernetes::default() }),
        ..Status::default()
    }
}

fn shown(status: &Status, query: &str) -> String {
    page(status, &Query::parse(query).unwrap())
}

/// The text of a page without its markup, style and script.
fn text(page: &str) -> String {
    let (_, body) = page.split_once("</head>").unwrap();
    let (body, _) = body.split_once("<script>").unwrap();
    let text: Vec<_> =
        body.split('<').map(|part| part.split_once('>').map_or("", |(_, text)| text)).collect();
    text.join("|").split('|').filter(|text| !text.is_empty()).collect::<Vec<_>>().join("|")
}

fn holds(page: &str, parts: &[&str]) {
    let text = text(page);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn healthy_server_says_so_in_words() {
    let mut status = server();
    status.agents.remove(1);
    status.totals.agents_unhealthy = 0;
    status.certificates.truncate(1);
    status.connections.truncate(1);
    status.history[1].failures = 0;
    let page = shown(&status, "");
    holds(
        &page,
        &[
            "Ready: 3 agents, 12 connections",
            "|3,000|",
            "Nothing needs attention.",
            "node-1|ready|",
            "|system:node:1|",
        ],
    );
    holds(&page, &["Running for|2 h 6 min", "Successful dials|1,234", "12 ms", "5.0 MiB", "|upstream|"]);
    holds(&page, &["Next certificate to expire|in 364 d 12 h (--agents-cert)|"]);
    holds(&page, &["The last 15 minutes: 126 successful dials and 0 failed dials, at most 100 in 15 s"]);
    assert!(page.contains("<title>Ready - proxy-server server-1</title>"));
}

#[test]
fn most_frequent_target_or_peer_of_failures_is_named() {
    let summary = |failures: &[(&str, &str)]| {
        let mut status = server();
        let model = status.failures[0].clone();
        let failure = |(target, peer): &(&str, &str)| Failure {
            target: (*target).to_owned(),
            peer: (*peer).to_owned(),
            ..model.clone()
        };
        status.failures = failures.iter().map(failure).collect();
        status.history[1].failures = failures.len() as u32;
        let text = text(&shown(&status, ""));
        let (_, rest) = text.split_once("last 15 minutes failed").unwrap();
        rest.split_once(". Last").unwrap().0.to_owned()
    };
    let (pod, kubelet) = ("10.1.1.1:80", "10.1.2.3:10250");
    assert_eq!(summary(&[(pod, "a"), (pod, "b"), (pod, "b")]), ", all to 10.1.1.1:80 through 2 agents");
    assert_eq!(
        summary(&[(pod, "a"), (pod, "b"), (kubelet, "b")]),
        ", 2 of them to 10.1.1.1:80 through 2 agents"
    );
    assert_eq!(summary(&[(pod, "a"), (pod, "a")]), ", all to 10.1.1.1:80 through a");
    assert_eq!(summary(&[(pod, "a"), (kubelet, "a"), (kubelet, "a")]), ", all through a");
    assert_eq!(summary(&[(pod, ""), (pod, "")]), ", all to 10.1.1.1:80");
}

#[test]
fn faults_are_named_with_links_to_their_rows() {
    let page = shown(&server(), "");
    holds(
        &page,
        &[
            "|1 of 3 agents is not ready: node-2 is ejected: its dials fail, those of others do not; tried again in 20 s|",
            "|7 of 7 dials failed at node-2. Last: too many open files|",
            "|1 of 127 dials in the last 15 minutes failed, all through node-2. Last: 10.1.2.3:10250: connect: connection refused|",
            "|1 stalled connection on this page: the client takes no data. Longest: 12 s, client certificate kube-apiserver at 10.0.0.5:40000, target 10.1.1.3:443, agent node-3|",
            "|Changed certificate files of frontend cannot be used, the old ones stay in use: no END line|",
            "|The certificate presented at “frontend” expires in 3 d 12 h: --frontend-cert /pki/frontend.crt|",
            "|The certificate presented at “kubeconfig” expires in 19 d: ",
            "|ejected|its dials fail, those of others do not; tried again in 20 s|",
        ],
    );
    for link in [
        "/?sort=-reason#agents",
        "/?sort=-dials_failed#agents",
        "/?list=connections&amp;sort=-stalled_seconds#connections",
        "#failures",
    ] {
        assert!(page.contains(&format!("href=\"{link}\"")), "{link}");
    }
    let order = ["CN=frontend|in 3 d 12 h", "CN=kubeconfig|in 19 d", "CN=agents|in 364 d 12 h"];
    let places = order.map(|certificate| text(&page).find(certificate).unwrap());
    assert!(places.is_sorted(), "next to end first");
    assert!(
        page.contains("<span class=\"badge bad\">in 3 d")
            && page.contains("<span class=\"badge warn\">in 19 d")
    );
}

/// Clients see no failure if other agents take the dials over.
#[test]
fn a_failing_agent_is_named_although_no_dial_failed() {
    let mut status = Status { failures: Vec::new(), ..server() };
    let sum = "“Dials failed” includes dials that another agent then took over; the totals above do not.|";
    holds(&shown(&status, ""), &["|7 of 7 dials failed at node-2. Last: too many open files|", sum]);
    status.agents[1].last_failed = "2026-07-01T09:00:00.000Z".to_owned();
    assert!(!shown(&status, "").contains("failed at node-2"), "long ago");
}

#[test]
fn server_without_agents_tells_the_last_refused_peer() {
    let refused = Refused {
        time: "2026-07-01T11:59:40.000Z".to_owned(),
        listener: "agents".to_owned(),
        peer: "10.0.0.9".to_owned(),
        error: "certificate signed by CN=other".to_owned(),
        count: 3,
    };
    let health = |name: &str, ok, note: &str| Health { name: name.to_owned(), ok, note: note.to_owned() };
    let status = Status {
        health: vec![health("file", true, ""), health("agents", false, "no agent connected")],
        refused: vec![refused],
        agents: Vec::new(),
        totals: Totals { refused: 3, ..Totals::default() },
        ..server()
    };
    let page = shown(&status, "");
    holds(
        &page,
        &[
            "Not ready: no agent connected; last: 10.0.0.9: certificate signed by CN=other, 20 s ago",
            "No agent is connected. The table of refused peers below may show why.",
            "|agents|not met|no agent connected|",
        ],
    );
    assert!(page.contains("<title>Not ready - "));
}

#[test]
fn agent_shows_its_servers() {
    let one =
        Server { id: "server-1".to_owned(), state: "ready".to_owned(), native: true, ..Server::default() };
    let status = Status {
        build: Build { program: "proxy-agent".to_owned(), ..Build::default() },
        servers: vec![one],
        refused: vec![Refused {
            peer: "10.0.0.1:8091".to_owned(),
            error: "timed out".to_owned(),
            ..Refused::default()
        }],
        totals: Totals { servers: 1, connections: 1, ..Totals::default() },
        ..server()
    };
    let page = shown(&status, "");
    holds(
        &page,
        &["Ready: 1 server, 1 connection", "Servers |1|", "server-1|ready|", "Target|Server|", "|native|"],
    );
    holds(
        &page,
        &["|An attempt to connect to a server failed. Last: 10.0.0.1:8091: timed out|", "|Failed attempts |"],
    );
    assert!(!page.contains("id=\"agents\"") && page.contains("/?sort=-connections#servers"));
    let page = shown(&status, "list=agents");
    assert!(page.contains("/?list=servers&amp;sort=-connections#servers"));
    assert!(page.contains("<input type=\"hidden\" name=\"list\" value=\"servers\">"));
}

#[test]
fn sort_links_turn_the_order_and_keep_the_filter() {
    let mut status = server();
    status.agents[0].zone = "node &".to_owned();
    let page = shown(&status, "filter=node%20%26&sort=-connections");
    for part in [
        "aria-sort=\"descending\"><a href=\"/?filter=node%20%26&amp;sort=connections#agents\">Connections<span",
        "<th scope=\"col\"><a href=\"/?filter=node%20%26&amp;sort=id#agents\">Agent</a>",
        "name=\"filter\" type=\"search\" placeholder=\"id, address or target\" value=\"node &amp;\"",
        "<input type=\"hidden\" name=\"sort\" value=\"-connections\">",
        "<a href=\"/?sort=-connections\">Clear</a>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("aria-sort=").count(), 1);
    holds(&page, &["No entry contains the filter."]);
    holds(&shown(&server(), "filter=10.1.2.3"), &["connect: connection refused"]);
}

#[test]
fn columns_without_a_text_are_absent() {
    let mut status = server();
    let has_zones = |status: &Status, query: &str| text(&shown(status, query)).contains("|Zone|");
    assert!(!has_zones(&status, "") && has_zones(&status, "sort=zone"));
    status.agents[1].zone = "a".to_owned();
    assert!(has_zones(&status, ""));
}

/// A stall may be on another page.
#[test]
fn page_with_some_connections_leads_to_the_stalled_ones() {
    let some = shown(&server(), "limit=1");
    holds(&some, &["Stalled connections|Look among all 12|"]);
    assert!(some.contains("href=\"/?list=connections&amp;sort=-stalled_seconds#connections\">Look"));
    assert!(!shown(&server(), "").contains("Look among all"), "they are all here");
}

#[test]
fn sixteen_thousand_agents_come_in_pages() {
    let all: Vec<_> = (0..16_000).map(|at| Agent { id: format!("a{at:05}"), ..Agent::default() }).collect();
    let of = |query: &str| {
        let query = Query::parse(query).unwrap();
        let mut rows = status::Page::new(&wanted(&query));
        all.iter().for_each(|agent| rows.push(agent.clone()));
        let totals = Totals { agents: 16_000, ..Totals::default() };
        let page = page(&Status { agents: rows.finish(), totals, ..server() }, &query);
        assert!(page.len() < 200_000, "{}", page.len());
        page
    };
    let first = of("");
    holds(&first, &["Rows 1 to 100 of 16,000|Next|", "|a00000|", "|a00099|"]);
    assert!(!first.contains("a00100") && first.contains("/?list=agents&amp;offset=100\""));
    let middle = of("list=agents&offset=8050&limit=50&sort=-id");
    holds(&middle, &["Rows 8,051 to 8,100 of 16,000|Previous|Next|", "|a07949|", "Not on this page."]);
    for link in ["limit=50&amp;offset=8000\"", "limit=50&amp;offset=8100\""] {
        assert!(middle.contains(&format!("/?list=agents&amp;sort=-id&amp;{link}")), "{link}");
    }
    let last = of("list=agents&offset=15900");
    holds(&last, &["Rows 15,901 to 16,000 of 16,000|Previous|"]);
    assert!(!last.contains(">Next<"));
    holds(&of("list=agents&offset=20000"), &["No rows after 20,000 of 16,000|Previous|"]);
}

/// The markup of a page without attribute values and text.
fn structure(page: &str) -> Vec<String> {
    let tags = page.split('<').skip(1).map(|part| part.split_once('>').expect("a tag ends").0);
    let values = |tag: &str| tag.split('"').step_by(2).collect::<Vec<_>>().join("\"");
    let (style, script) = (STYLE.matches('<').count(), SCRIPT.matches('<').count());
    assert_eq!((style, script), (0, 0));
    tags.map(values).collect()
}

/// The document of a server whose every text is replaced.
fn with_texts(text: &str) -> Status {
    fn replace(value: &mut serde_json::Value, key: &str, text: &str) {
        match value {
            serde_json::Value::String(old) if key != "program" && key != "now" => text.clone_into(old),
            serde_json::Value::Array(list) => list.iter_mut().for_each(|one| replace(one, key, text)),
            serde_json::Value::Object(map) => map.iter_mut().for_each(|(key, one)| replace(one, key, text)),
            _ => {}
        }
    }
    let refused = Refused { error: "x".to_owned(), ..Refused::default() };
    let mut value = serde_json::to_value(Status { refused: vec![refused], ..server() }).unwrap();
    replace(&mut value, "", text);
    serde_json::from_value(value).unwrap()
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(16))]

    #[test]
    fn no_text_of_a_document_becomes_markup(
        text in proptest::prelude::any::<String>(),
        hostile in "[<>&\"'/=a-z -]{1,40}",
    ) {
        let rendered = |text: &str| {
            let query = Query { filter: text.to_owned(), ..Query::default() };
            structure(&page(&with_texts(text), &query))
        };
        let plain = rendered("x");
        for text in [&text, &hostile, "</style></script><script>alert(1)</script>", "\" onload=x "] {
            proptest::prop_assert_eq!(&rendered(&format!("x{text}")), &plain);
        }
    }
}
