//! Every flag of the proxy-agent in one table: its default, its spellings and its errors.

mod agent;
mod servers;

#[allow(dead_code, unreachable_pub, reason = "the tests of both programs share it")]
#[path = "../../../common/flags/tests/table/mod.rs"]
mod table;

use std::path::Path;

use flags::Exit;
use proptest::prelude::*;
use proxy_agent::args::{self, Config};
use table::{
    Entry, argv, check, check_help, flow_entries, is_the_check_by_name, log_entries, profiling_entries,
    record_entries,
};

/// The base of table rows. `{file}` exists, `{none}` does not.
const BASE: &[&str] = &["--ca-cert={file}"];

/// An entry whose rows use the base.
fn flag(flag: &'static str, shown: fn(&Config) -> String) -> Entry<Config> {
    Entry::new(flag, BASE, shown)
}

fn table() -> Vec<Entry<Config>> {
    let log = log_entries(BASE, |config: &Config| &config.log, |config| &config.warnings);
    let groups = [
        servers::uplink(),
        servers::sync(),
        agent::identity(),
        agent::endpoints(),
        agent::serving(),
        agent::kubernetes(),
        profiling_entries(
            BASE,
            |config: &Config| config.profiling.enable_profiling,
            |config| config.profiling.status_on_any_address,
            |config| &config.warnings,
        ),
        flow_entries(BASE, |config: &Config| &config.flow),
        record_entries(BASE, |config: &Config| &config.records),
        log,
    ];
    groups.into_iter().flatten().collect()
}

fn run(words: &[&str], dir: &Path) -> Result<Config, Exit> {
    args::parse(argv("proxy-agent", words, dir), |name| {
        (name == "PROXY_AGENT_ID").then(|| "from-the-environment".into())
    })
}

fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("file"), "").expect("a file in it");
    dir
}

#[test]
fn every_row_of_the_table() {
    let dir = directory();
    check(&table(), |words| run(words, dir.path()));
}

#[test]
fn the_table_and_the_help_name_the_same_flags() {
    check_help(&table(), &run(&["--help"], Path::new("/")).unwrap_err());
}

#[test]
fn identities_without_flag_and_environment_differ() {
    let fresh = || args::parse(std::iter::once("proxy-agent".into()), |_| None).unwrap().servers.agent_id;
    assert_eq!(fresh().len(), 36);
    assert_ne!(fresh(), fresh());
}

#[test]
fn flags_that_weaken_or_do_nothing_are_said() {
    let dir = directory();
    let warnings = |words: &[&str]| run(&[BASE, words].concat(), dir.path()).unwrap().warnings;
    assert_eq!(warnings(&[]), [""; 0]);
    let deprecated = "--lease-label is deprecated: use --lease-label-selector";
    assert_eq!(warnings(&["--count-server-leases", "--lease-label=a=b"]), [deprecated]);
    let table = [
        ("--ca-cert=", "--ca-cert is empty: servers are trusted by the system's authorities"),
        ("--proxy-server-host=", "--proxy-server-host is empty: it counts as localhost"),
        ("--agent-identifiers=ipv4=$(HOST_IP)", "a variable that nothing expanded"),
        ("--agent-identifiers=host=%24HOST", "a variable that nothing expanded"),
        ("--agent-identifiers=host", "an empty value"),
        ("--agent-identifiers=ipv4=10.0.0.1,fd00::1", "a list of addresses"),
        ("--agent-identifiers=%69pv4=10.0.0.1%2C10.0.0.2", "a list of addresses"),
        ("--probe-interval=5s", "--probe-interval has no effect: a lost stream is noticed at once"),
        ("--server-count-source=max", "--server-count-source has no effect: leases are not counted"),
        ("--lease-namespace=x", "--lease-namespace has no effect: leases are not counted"),
        ("--lease-label-selector=a=b", "--lease-label-selector has no effect: leases are not counted"),
        ("--otlp-sample-ratio=1", "--otlp-sample-ratio has no effect: there is no --otlp-endpoint"),
        ("--sync-interval=0", "--sync-interval=0s: it counts as 1ms"),
        ("--allow-cloud-metadata", "--allow-cloud-metadata: servers can get at"),
        ("--kubeconfig={file}", "--kubeconfig has no effect"),
        ("--log-file=/x", "--log-file has no effect without --logtostderr=false"),
    ];
    for (word, warning) in table {
        let said = warnings(&[word]);
        assert!(said.len() == 1 && said[0].contains(warning), "{word} said {said:?}");
    }
    assert_eq!(
        warnings(&["--proxy-server-host=a:1,b:2", "--proxy-server-port=3"]),
        ["--proxy-server-port has no effect: each entry of --proxy-server-host has a port"]
    );
}

#[test]
fn the_sample_manifest_starts() {
    let dir = directory();
    let words = [
        "--logtostderr=true",
        "--ca-cert={file}",
        "--proxy-server-host=konnectivity.example",
        "--proxy-server-port=8132",
        "--admin-server-port=8133",
        "--health-server-port=8134",
        "--sync-interval=5s",
        "--sync-interval-cap=30s",
        "--probe-interval=5s",
        "--service-account-token-path={file}",
        "--agent-identifiers=ipv4=10.0.0.1&host=node1",
        "--v=3",
    ];
    let config = run(&words, dir.path()).unwrap();
    assert_eq!(config.proxy_servers[0].port, 8132);
    assert_eq!(config.servers.agent_identifiers, "ipv4=10.0.0.1&host=node1");
}

#[test]
fn under_its_name_the_program_is_the_check() {
    is_the_check_by_name(env!("CARGO_BIN_EXE_proxy-agent"), "proxy-agent", env!("CARGO_PKG_VERSION"));
}

proptest! {
    #[test]
    fn no_command_line_panics(words in prop::collection::vec(word(), 0..8)) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if let Err(exit) = run(&words, Path::new("/nowhere")) {
            prop_assert_eq!(exit.stderr.lines().count(), usize::from(exit.code));
        }
    }
}

/// A flag of the table with a random value, or a random word.
fn word() -> impl Strategy<Value = String> {
    let names: Vec<_> = table().iter().map(|entry| entry.flag).collect();
    let value = "(=[-0-9a-z,=\"\\[\\]%&;!()]{0,12})?";
    prop_oneof![
        (prop::sample::select(names), value).prop_map(|(name, value)| format!("--{name}{value}")),
        "-{0,3}\\PC{0,12}",
    ]
}
