//! Every flag of the proxy-server in one table: its default, its spellings and its errors.

mod agents;
mod frontend;
mod kubernetes;
mod replica;

#[allow(dead_code, unreachable_pub, reason = "the tests of both programs share it")]
#[path = "../../../common/flags/tests/table/mod.rs"]
mod table;

use std::path::Path;

use flags::Exit;
use proptest::prelude::*;
use proxy_server::args::{self, Config};
use table::{
    Entry, argv, check, check_help, flow_entries, is_the_check_by_name, log_entries, profiling_entries,
    record_entries,
};

/// The bases of table rows: a Unix socket, a TLS port, and nothing. `{file}` exists, `{none}` does not.
const UDS: &[&str] =
    &["--uds-name={none}", "--server-port=0", "--cluster-cert={file}", "--cluster-key={file}"];
const TCP: &[&str] = &[
    "--server-cert={file}",
    "--server-key={file}",
    "--server-ca-cert={file}",
    "--cluster-cert={file}",
    "--cluster-key={file}",
];
const BARE: &[&str] = &[];

/// An entry whose rows use the base of the Unix socket.
fn flag(flag: &'static str, shown: fn(&Config) -> String) -> Entry<Config> {
    Entry::new(flag, UDS, shown)
}

fn table() -> Vec<Entry<Config>> {
    let log = log_entries(UDS, |config: &Config| &config.log, |config| &config.warnings);
    let groups = [
        frontend::frontend(),
        agents::agents(),
        agents::access(),
        replica::routing(),
        replica::serving(),
        kubernetes::kubernetes(),
        profiling_entries(
            UDS,
            |config: &Config| config.profiling.enable_profiling,
            |config| config.profiling.status_on_any_address,
            |config| &config.warnings,
        ),
        flow_entries(UDS, |config: &Config| &config.flow),
        record_entries(UDS, |config: &Config| &config.records),
        log,
    ];
    groups.into_iter().flatten().collect()
}

fn run(words: &[&str], dir: &Path) -> Result<Config, Exit> {
    args::parse(argv("proxy-server", words, dir), |name| {
        (name == "PROXY_SERVER_ID").then(|| "from-the-environment".into())
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
    let dir = directory();
    let file = dir.path().join("file").into_os_string();
    let fresh = || {
        let flag = |name: &str| [name.into(), file.clone()];
        let words =
            [["proxy-server".into(), "--uds-name=x".into()], flag("--cluster-cert"), flag("--cluster-key")];
        let words = words.into_iter().flatten().chain(["--server-port=0".into()]);
        args::parse(words, |_| None).unwrap().replica.server_id
    };
    assert_eq!(fresh().len(), 36);
    assert_ne!(fresh(), fresh());
}

#[test]
fn flags_that_weaken_or_do_nothing_are_said() {
    let dir = directory();
    let warnings = |words: &[&str]| run(&[UDS, words].concat(), dir.path()).unwrap().warnings;
    assert_eq!(warnings(&[]), [""; 0]);
    let table = [
        ("--tls-min-version=VersionTLS10", "TLS below 1.2 is insecure"),
        ("--cipher-suites=TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256 has no effect"),
        (
            "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
            "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA is not offered",
        ),
        ("--proxy-strategies=default,destHost", "the strategies after it are never asked"),
        ("--kubeconfig={file}", "--kubeconfig has no effect: there are neither leases nor token reviews"),
        ("--kubeconfig-qps=5", "--kubeconfig-qps has no effect: there are neither leases nor token reviews"),
        ("--kubeconfig-burst=5", "--kubeconfig-burst has no effect: there are neither leases nor"),
        ("--lease-namespace=x", "--lease-namespace has no effect: there are no leases"),
        ("--lease-label=a=b", "--lease-label has no effect: there are no leases"),
        ("--advertise-address=a:1", "--advertise-address has no effect: there are no leases"),
        ("--server-bind-address=::1", "--server-bind-address has no effect: the frontend is a Unix socket"),
        ("--otlp-sample-ratio=1", "--otlp-sample-ratio has no effect: there is no --otlp-endpoint"),
        ("--log-file=/x", "--log-file has no effect without --logtostderr=false"),
        ("--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "only TLS 1.3 is offered"),
        ("--agent-identity-source-address", "--agent-identity-source-address has no effect"),
        ("--token-review-interval=2m", "--token-review-interval has no effect"),
        ("--default-route-allowed-names=a", "--default-route-allowed-names refuses nobody"),
        ("--server-count=0", "--server-count=0: it counts as 1"),
        ("--uds-name=@x", "--uds-name=@x: an abstract socket"),
    ];
    for (word, warning) in table {
        let said = warnings(&[word]);
        assert!(said.len() == 1 && said[0].contains(warning), "{word} said {said:?}");
    }
    for (words, warning) in [
        (["--enable-lease-controller", "--kubeconfig-burst=5"], "no effect: --kubeconfig-qps sets no limit"),
        (["--proxy-strategies=destHost", "--prefer-zone=a"], "--prefer-zone has no effect: "),
        (
            ["--mode=http-connect", "--frontend-keepalive-time=1m"],
            "--frontend-keepalive-time has no effect: ",
        ),
        (
            ["--tls-min-version=VersionTLS13", "--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"],
            "--cipher-suites has no effect: ",
        ),
    ] {
        let said = warnings(&words);
        assert!(said.len() == 1 && said[0].contains(warning), "{words:?} said {said:?}");
    }
    let said = run(&[TCP, &["--delete-existing-uds-file=false"]].concat(), dir.path()).unwrap().warnings;
    assert_eq!(said, ["--delete-existing-uds-file has no effect: no frontend is a Unix socket"]);
    let lease =
        ["--enable-lease-controller", "--lease-label=a=b", "--kubeconfig-qps=1", "--kubeconfig-burst=2"];
    assert_eq!(warnings(&lease), [""; 0]);
}

#[test]
fn an_abstract_socket_among_frontends_is_said() {
    let dir = directory();
    let words = [
        "--frontend=grpc+unix:@x",
        "--frontend=http-connect+unix:/s",
        "--cluster-cert={file}",
        "--cluster-key={file}",
    ];
    let config = run(&words, dir.path()).unwrap();
    let [warning] = &config.warnings[..] else { panic!("one warning: {:?}", config.warnings) };
    assert!(warning.starts_with("--frontend=grpc+unix:@x: an abstract socket"), "{warning}");
}

#[test]
fn the_sample_manifest_starts() {
    let dir = directory();
    let words = [
        "--logtostderr=true",
        "--uds-name={dir}/konnectivity-server.socket",
        "--delete-existing-uds-file",
        "--cluster-cert={file}",
        "--cluster-key={file}",
        "--server-port=0",
        "--agent-port=8132",
        "--health-port=8133",
        "--admin-port=8134",
        "--keepalive-time=1h",
        "--mode=grpc",
        "--v=4",
        "--kubeconfig=",
        "word",
        "--",
        "--nonsense",
    ];
    assert!(run(&words, dir.path()).is_ok());
}

#[test]
fn under_its_name_the_program_is_the_check() {
    is_the_check_by_name(env!("CARGO_BIN_EXE_proxy-server"), "proxy-server", env!("CARGO_PKG_VERSION"));
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
    let value = "(=[-0-9a-z,=\"\\[\\]%]{0,12})?";
    prop_oneof![
        (prop::sample::select(names), value).prop_map(|(name, value)| format!("--{name}{value}")),
        "-{0,3}\\PC{0,12}",
    ]
}
