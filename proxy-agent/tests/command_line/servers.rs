//! Flags of the connection to the proxy-servers, and of how the agent finds all of them.

use super::table::Entry;
use proxy_agent::args::Config;

use super::flag;

const PINGS: &str = "--keepalive-time has no effect: native servers are pinged after 2s, Go servers after 35s, because they \
                     refuse more frequent pings";

const PROBES: &str = "--probe-interval has no effect: a lost stream is noticed at once";

pub(crate) fn uplink() -> Vec<Entry<Config>> {
    fn certificate(config: &Config) -> String {
        config.certificate.is_some().to_string()
    }
    fn servers(config: &Config) -> String {
        let servers = config.proxy_servers.iter();
        servers.map(|server| format!("{} {}", server.host, server.port)).collect::<Vec<_>>().join(", ")
    }
    vec![
        flag("proxy-server-host", servers)
            .default("127.0.0.1 8091")
            .takes(&["--proxy-server-host=konnectivity.example"], "konnectivity.example 8091")
            .takes(&["--proxy-server-host", "::1"], "::1 8091")
            .takes(&["--proxy-server-host="], "localhost 8091")
            .takes(&["--proxy-server-host=a:443"], "a 443")
            .takes(
                &["--proxy-server-host=a,b:443,[::1],[::2]:444,10.0.0.1", "--proxy-server-port=8132"],
                "a 8132, b 443, [::1] 8132, ::2 444, 10.0.0.1 8132",
            )
            .refuses(
                &["--proxy-server-host=a,,b"],
                "--proxy-server-host=\"\": an entry of the list has no host",
            )
            .refuses(
                &["--proxy-server-host=a,"],
                "--proxy-server-host=\"\": an entry of the list has no host",
            )
            .refuses(
                &["--proxy-server-host=a,:1"],
                "--proxy-server-host=\":1\": an entry of the list has no host",
            )
            .refuses(
                &["--proxy-server-host=a,b:0"],
                "--proxy-server-host=\"b:0\": its port must be from 1 to 65535",
            )
            .refuses(&["--proxy-server-host=a:http"], "--proxy-server-host=\"a:http\": its port must be")
            .refuses(&["--proxy-server-host=a,[::1"], "--proxy-server-host=\"[::1\": it must be HOST"),
        flag("proxy-server-port", |c| c.proxy_servers[0].port.to_string())
            .default("8091")
            .takes(&["--proxy-server-port=443"], "443")
            .takes(&["--proxy-server-port=65535"], "65535")
            .takes(&["--proxy-server-port=0x1F9B"], "8091")
            .refuses(&["--proxy-server-port=0"], "--proxy-server-port=0: it must be a port from 1 to 65535")
            .refuses(&["--proxy-server-port=-1"], "--proxy-server-port=-1: it must be a port from 1 to 65535")
            .rejects_but_go_accepts(
                &["--proxy-server-port=65536"],
                "--proxy-server-port=65536: it must be a port",
            )
            .refuses(
                &["--proxy-server-port=http"],
                "invalid argument \"http\" for \"--proxy-server-port\" flag: ",
            ),
        flag("ca-cert", |c| c.servers.ca_cert.is_some().to_string())
            .default("true")
            .accepts_but_go_rejects(&["--ca-cert="], "false")
            .refuses(&["--ca-cert={none}"], "--ca-cert: "),
        flag("agent-cert", certificate)
            .default("false")
            .takes(&["--agent-cert={file}", "--agent-key={file}"], "true")
            .takes(&["--agent-cert=", "--agent-key="], "false")
            .refuses(&["--agent-cert={file}"], "--agent-cert needs --agent-key: give both, or neither")
            .refuses(&["--agent-cert={none}", "--agent-key={file}"], "--agent-cert: "),
        flag("agent-key", certificate)
            .refuses(&["--agent-key={file}"], "--agent-key needs --agent-cert: give both, or neither")
            .refuses(&["--agent-key={none}"], "--agent-key: "),
        flag("service-account-token-path", |c| c.servers.service_account_token_path.is_some().to_string())
            .default("false")
            .takes(&["--service-account-token-path={file}"], "true")
            .refuses(&["--service-account-token-path={none}"], "--service-account-token-path: "),
        flag("certificate-reload-interval", |c| format!("{:?}", c.servers.certificate_reload_interval))
            .default("Some(10s)")
            .accepts_but_go_rejects(&["--certificate-reload-interval=500ms"], "Some(500ms)")
            .accepts_but_go_rejects(&["--certificate-reload-interval=0"], "None")
            .refuses(
                &["--certificate-reload-interval=-1s"],
                "--certificate-reload-interval=-1s: it must not be below 0",
            ),
        flag("alpn-proto", |c| c.servers.alpn_proto.join(" "))
            .default("")
            .takes(&["--alpn-proto=a,b", "--alpn-proto=c"], "a b c")
            .takes(&["--alpn-proto=[]"], "")
            .takes(&["--alpn-proto=[a,b]"], "a b")
            .takes(&["--alpn-proto="], "")
            .rejects_but_go_accepts(
                &["--alpn-proto=a,"],
                "--alpn-proto=\"\": a protocol's name has 1 to 255 bytes",
            ),
        flag("keepalive-time", |c| c.warnings.join("; "))
            .default("")
            .takes(&["--keepalive-time=30s"], PINGS)
            .takes(&["--keepalive-time=0"], PINGS)
            .takes(&["--keepalive-time=1ns"], PINGS)
            .takes(&["--keepalive-time=-1h"], PINGS)
            .refuses(
                &["--keepalive-time=1"],
                "invalid argument \"1\" for \"--keepalive-time\" flag: the unit is",
            ),
        flag("keepalive-timeout", |c| format!("{:?}", c.keepalive.half_open_timeout))
            .default("20s")
            .accepts_but_go_rejects(&["--keepalive-timeout=5s"], "5s")
            .accepts_but_go_rejects(&["--keepalive-timeout=0"], "20s")
            .accepts_but_go_rejects(&["--keepalive-timeout=1ms"], "1s")
            .refuses(
                &["--keepalive-timeout=5"],
                "invalid argument \"5\" for \"--keepalive-timeout\" flag: the unit is",
            ),
        flag("unresponsive-timeout", |c| format!("{:?}", c.keepalive.unresponsive_timeout))
            .default("300s")
            .accepts_but_go_rejects(&["--unresponsive-timeout=10s"], "10s")
            .accepts_but_go_rejects(&["--unresponsive-timeout=1h"], "3600s")
            .refuses(&["--unresponsive-timeout=9s"], "--unresponsive-timeout=9s: it must not be below 10s"),
    ]
}

pub(crate) fn sync() -> Vec<Entry<Config>> {
    vec![
        flag("sync-interval", |c| format!("{:?}", c.sync_interval))
            .default("1s")
            .takes(&["--sync-interval=10s"], "10s")
            .takes(&["--sync-interval=0"], "1ms")
            .takes(&["--sync-interval=-1s"], "1ms")
            .refuses(
                &["--sync-interval=11s"],
                "--sync-interval=11s: it must not be above --sync-interval-cap=10s",
            ),
        flag("sync-interval-cap", |c| format!("{:?}", c.sync_interval_cap))
            .default("10s")
            .takes(&["--sync-interval-cap=1s"], "1s")
            .takes(&["--sync-interval-cap=1m", "--sync-interval=30s"], "60s")
            .refuses(
                &["--sync-interval-cap=100ms"],
                "--sync-interval=1s: it must not be above --sync-interval-cap=100ms",
            ),
        flag("probe-interval", |c| c.warnings.join("; "))
            .default("")
            .takes(&["--probe-interval=100ms"], PROBES)
            .takes(&["--probe-interval=1\u{b5}s"], PROBES)
            .takes(&["--probe-interval=-1s"], PROBES),
        flag("sync-forever", |c| c.servers.sync_forever.to_string())
            .default("false")
            .takes(&["--sync-forever"], "true")
            .takes(&["--sync-forever=false"], "false"),
        flag("server-count-source", |c| format!("{:?}", c.servers.server_count_source))
            .default("Default")
            .takes(&["--server-count-source="], "Default")
            .takes(&["--server-count-source=default"], "Default")
            .takes(&["--server-count-source=max"], "Max")
            .refuses(
                &["--server-count-source=min"],
                "--server-count-source=\"min\": it must be default or max",
            ),
        flag("lanes", |c| c.servers.lanes.to_string())
            .default("2")
            .takes(&["--lanes=1"], "1")
            .takes(&["--lanes=4"], "4")
            .refuses(&["--lanes=0"], "--lanes=0: it must be from 1 to 4")
            .refuses(&["--lanes=5"], "--lanes=5: it must be from 1 to 4"),
        flag("xfr-channel-size", |c| c.warnings.join("; "))
            .default("")
            .takes(
                &["--xfr-channel-size=1"],
                "--xfr-channel-size has no effect: queues are limited in bytes, not in packets",
            )
            .refuses(&["--xfr-channel-size=0"], "--xfr-channel-size=0: it must be above 0")
            .refuses(&["--xfr-channel-size=-1"], "--xfr-channel-size=-1: it must be above 0"),
        flag("warn-on-channel-limit", |c| c.warnings.join("; ")).default("").takes(
            &["--warn-on-channel-limit=true"],
            "--warn-on-channel-limit has no effect: there is no such channel",
        ),
    ]
}
