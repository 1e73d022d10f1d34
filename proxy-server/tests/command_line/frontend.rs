//! Flags of the frontend, where kube-apiserver connects.

use super::table::Entry;
use proxy_server::args::{Config, FrontendListener, TlsFiles};

use super::{BARE, TCP, flag};

pub(crate) fn frontend() -> Vec<Entry<Config>> {
    fn tcp_bind(config: &Config) -> String {
        match &config.frontends[0].listener {
            FrontendListener::Tcp(bind) => format!("{}, {}", bind.host, bind.port),
            FrontendListener::Unix(_) => "unix".into(),
        }
    }
    fn tls(config: &Config) -> String {
        match &config.frontend_tls {
            Some(TlsFiles { cert, key, client_ca }) => {
                [cert, key, client_ca.as_ref().expect("a frontend has authorities")]
                    .map(|path| {
                        path.file_name()
                            .expect("paths of the table have a name")
                            .to_string_lossy()
                            .into_owned()
                    })
                    .join(" ")
            }
            None => "unix".into(),
        }
    }
    fn unix(config: &Config) -> String {
        match &config.frontends[0].listener {
            FrontendListener::Unix(path) => {
                format!(
                    "{} {}",
                    path.file_name().expect("paths of the table have a name").to_string_lossy(),
                    config.frontend.delete_existing_uds_file
                )
            }
            FrontendListener::Tcp(_) => "tcp".into(),
        }
    }
    fn all(config: &Config) -> String {
        let shown: Vec<_> = config.frontends.iter().map(ToString::to_string).collect();
        shown.join(" ")
    }
    vec![
        flag("frontend", all)
            .on(TCP)
            .default("grpc+tcp:8090")
            .accepts_but_go_rejects(&["--frontend="], "grpc+tcp:8090")
            .accepts_but_go_rejects(&["--frontend=grpc+tcp:2000"], "grpc+tcp:2000")
            .accepts_but_go_rejects(
                &["--frontend=http-connect+unix:/a,b:c+d", "--frontend", "grpc+tcp:2000"],
                "http-connect+unix:/a,b:c+d grpc+tcp:2000",
            )
            .accepts_but_go_rejects(
                &["--frontend=http-connect+tcp:127.0.0.1:2000", "--frontend=grpc+tcp:[::1]:2000"],
                "http-connect+tcp:127.0.0.1:2000 grpc+tcp:[::1]:2000",
            )
            .refuses(&["--frontend=grpc"], "--frontend=\"grpc\": it must be PROTOCOL+TRANSPORT:ADDRESS")
            .refuses(&["--frontend=unix:/s"], "--frontend=\"unix:/s\": it must be PROTOCOL+TRANSPORT:ADDRESS")
            .refuses(
                &["--frontend=http+unix:/s"],
                "--frontend=\"http+unix:/s\": the protocol must be grpc or http-connect",
            )
            .refuses(
                &["--frontend=grpc+udp:1"],
                "--frontend=\"grpc+udp:1\": the transport must be unix or tcp",
            )
            .refuses(&["--frontend=grpc+unix:"], "--frontend=\"grpc+unix:\": the path must not be empty")
            .refuses(&["--frontend=grpc+tcp:"], "--frontend=\"grpc+tcp:\": the address must be PORT")
            .refuses(&["--frontend=grpc+tcp:0"], "--frontend=\"grpc+tcp:0\": the address must be PORT")
            .refuses(&["--frontend=grpc+tcp:a:49152"], "--frontend=\"grpc+tcp:a:49152\": the address must be")
            .refuses(
                &["--frontend=grpc+tcp:::1:2000"],
                "--frontend=\"grpc+tcp:::1:2000\": the address must be",
            )
            .refuses(
                &["--frontend=grpc+tcp:[::1]"],
                "--frontend=\"grpc+tcp:[::1]\": the address must be PORT",
            )
            .refuses(
                &["--frontend=grpc+tcp:[::1:2000"],
                "--frontend=\"grpc+tcp:[::1:2000\": the address must be",
            )
            .refuses(
                &["--frontend=grpc+unix:/s", "--frontend=http-connect+unix:/s"],
                "--frontend=\"http-connect+unix:/s\": another --frontend has this address: give each its own",
            )
            .refuses(
                &["--frontend=grpc+tcp:2000", "--frontend=grpc+tcp:127.0.0.1:2000"],
                "--frontend=\"grpc+tcp:127.0.0.1:2000\": another --frontend has this address",
            )
            .refuses(
                &["--frontend=grpc+tcp:[::1]:2000", "--frontend=grpc+tcp:0.0.0.0:2000"],
                "--frontend=\"grpc+tcp:0.0.0.0:2000\": another --frontend has this address",
            )
            .refuses(
                &["--frontend=grpc+tcp:2000", "--server-ca-cert="],
                "--frontend=\"grpc+tcp:2000\": a port has TLS: give --server-cert, --server-key and",
            )
            .refuses(
                &["--frontend=grpc+tcp:2000", "--server-key="],
                "--server-cert needs --server-key: give both, or neither",
            )
            .refuses(
                &["--frontend=grpc+unix:/s"],
                "--server-key cannot be used with --frontend: drop it, the Unix socket carries no TLS",
            )
            .refuses(
                &["--frontend=grpc+tcp:2000", "--mode=grpc"],
                "--mode cannot be used with --frontend: name the protocol in each --frontend",
            )
            .refuses(
                &["--frontend=grpc+tcp:2000", "--uds-name=/s"],
                "--uds-name cannot be used with --frontend: give it as --frontend=PROTOCOL+unix:PATH",
            )
            .refuses(
                &["--frontend=grpc+tcp:2000", "--server-port=8090"],
                "--server-port cannot be used with --frontend: give it as --frontend=PROTOCOL+tcp:PORT",
            )
            .refuses(
                &["--frontend=grpc+tcp:2000", "--server-bind-address=::1"],
                "--server-bind-address cannot be used with --frontend: give it as",
            )
            .on(BARE)
            .refuses(
                &["--frontend=http-connect+tcp:2000"],
                "--frontend=\"http-connect+tcp:2000\": a port has TLS: give --server-cert",
            ),
        flag("mode", |c| format!("{:?}", c.frontends[0].protocol))
            .default("Grpc")
            .takes(&["--mode=http-connect"], "HttpConnect")
            .takes(&["--mode", "grpc"], "Grpc")
            .takes(&["--mode=bad", "--mode=grpc"], "Grpc")
            .refuses(&["--mode=http"], "--mode=\"http\": it must be grpc or http-connect")
            .refuses(&["--mode="], "--mode=\"\": it must be grpc or http-connect"),
        flag("uds-name", unix)
            .default("none true")
            .takes(&["--uds-name", "{dir}/s"], "s true")
            .refuses(&["--uds-name="], "--server-ca-cert must not be empty")
            .refuses(
                &["--server-port=8090"],
                "--server-port cannot be used with --uds-name: set --server-port=0",
            )
            .refuses(&["--server-port=-1"], "--server-port cannot be used with --uds-name")
            .refuses(
                &["--server-cert={file}", "--server-key={file}"],
                "--server-key cannot be used with --uds-name",
            )
            .refuses(&["--server-ca-cert={file}"], "--server-ca-cert cannot be used with --uds-name"),
        flag("delete-existing-uds-file", unix)
            .takes(&["--delete-existing-uds-file=false"], "none false")
            .takes(&["--delete-existing-uds-file"], "none true")
            .takes(&["--delete-existing-uds-file", "false"], "none true")
            .takes(&["--delete-existing-uds-file=F"], "none false")
            .refuses(
                &["--delete-existing-uds-file=no"],
                "invalid argument \"no\" for \"--delete-existing-uds-file\"",
            ),
        flag("server-port", tcp_bind)
            .on(TCP)
            .default("all interfaces, 8090")
            .takes(&["--server-port=1024"], "all interfaces, 1024")
            .takes(&["--server-port=0xbfff"], "all interfaces, 49151")
            .takes(&["--server-port", "0o20000"], "all interfaces, 8192")
            .takes(&["--server-port=8_090"], "all interfaces, 8090")
            .takes(&["--server-port=1", "--server-port=2000"], "all interfaces, 2000")
            .refuses(&["--server-port=0"], "--server-port=0: it must be a port from 1024 to 49151")
            .refuses(&["--server-port=1023"], "--server-port=1023: it must be a port from 1024 to 49151")
            .refuses(&["--server-port=49152"], "--server-port=49152: it must be a port from 1024 to 49151")
            .refuses(&["--server-port=70000"], "--server-port=70000: it must be a port from 1024 to 49151")
            .refuses(
                &["--server-port="],
                "invalid argument \"\" for \"--server-port\" flag: it must be a whole",
            )
            .refuses(
                &["--server-port=08"],
                "invalid argument \"08\" for \"--server-port\" flag: it must be a whole",
            ),
        flag("server-bind-address", tcp_bind)
            .on(TCP)
            .takes(&["--server-bind-address=127.0.0.1"], "127.0.0.1, 8090")
            .takes(&["--server-bind-address=::1"], "::1, 8090")
            .takes(&["--server-bind-address=localhost"], "localhost, 8090")
            .takes(&["--server-bind-address="], "all interfaces, 8090")
            .accepts_but_go_rejects(&["--server-bind-address=[::1]"], "::1, 8090"),
        flag("server-cert", tls)
            .on(TCP)
            .default("file file file")
            .refuses(&["--server-cert={none}"], "--server-cert: ")
            .refuses(&["--server-cert="], "--server-key needs --server-cert: give both, or neither")
            .refuses(&["--server-cert=", "--server-key="], "--server-cert must not be empty"),
        flag("server-key", tls)
            .on(TCP)
            .refuses(&["--server-key={none}"], "--server-key: ")
            .refuses(&["--server-key="], "--server-cert needs --server-key: give both, or neither"),
        flag("server-ca-cert", tls)
            .on(TCP)
            .refuses(&["--server-ca-cert={none}"], "--server-ca-cert: ")
            .refuses(&["--server-ca-cert="], "--server-ca-cert must not be empty")
            .on(BARE)
            .refuses(&[], "--server-ca-cert must not be empty: give the authorities"),
        flag("frontend-allowed-names", |c| c.frontend.frontend_allowed_names.join(" "))
            .default("")
            .refuses(
                &["--frontend-allowed-names=a"],
                "--frontend-allowed-names cannot be used with --uds-name: drop it",
            )
            .on(TCP)
            .accepts_but_go_rejects(&["--frontend-allowed-names=a,b"], "a b"),
        flag("frontend-keepalive-time", |c| format!("{:?}", c.frontend.frontend_keepalive_time))
            .default("3600s")
            .takes(&["--frontend-keepalive-time=1h0m0s"], "3600s")
            .takes(&["--frontend-keepalive-time=0"], "7200s")
            .takes(&["--frontend-keepalive-time=1ns"], "1s")
            .takes(&["--frontend-keepalive-time=-1s"], "1s")
            .refuses(
                &["--frontend-keepalive-time=30"],
                "invalid argument \"30\" for \"--frontend-keepalive-time\"",
            ),
    ]
}
