//! Flags of this replica, of its choice of agents, and of its health and admin ports.

use super::table::Entry;
use proxy_server::args::Config;

use super::flag;

pub(crate) fn routing() -> Vec<Entry<Config>> {
    fn strategies(config: &Config) -> String {
        config.replica.proxy_strategies.iter().map(|strategy| strategy.name()).collect::<Vec<_>>().join(" ")
    }
    vec![
        flag("server-id", |c| c.replica.server_id.clone())
            .default("from-the-environment")
            .takes(&["--server-id=a", "--server-id=b"], "b")
            .takes(&["--server-id", "a b"], "a b")
            .takes(&["--server-id="], "from-the-environment")
            .rejects_but_go_accepts(
                &["--server-id=zo\u{eb}"],
                "--server-id=\"zo\u{eb}\": it travels in a gRPC header",
            ),
        flag("server-count-file", |c| c.replica.server_count_file.is_some().to_string())
            .default("false")
            .accepts_but_go_rejects(&["--server-count-file={file}"], "true")
            .refuses(&["--server-count-file={none}"], "--server-count-file: "),
        flag("server-count", |c| c.replica.server_count.to_string())
            .default("1")
            .takes(&["--server-count=3"], "3")
            .takes(&["--server-count=0"], "1")
            .takes(&["--server-count=-2"], "1")
            .takes(&["--server-count=9223372036854775807"], "4294967295")
            .refuses(
                &["--server-count=many"],
                "invalid argument \"many\" for \"--server-count\" flag: it must be",
            ),
        flag("proxy-strategies", strategies)
            .default("default")
            .takes(&["--proxy-strategies=destHost,defaultRoute,default"], "destHost defaultRoute default")
            .takes(&["--proxy-strategies=,default,"], "default")
            .takes(&["--proxy-strategies=default", "--proxy-strategies=destHost"], "destHost")
            .accepts_but_go_rejects(&["--proxy-strategies=[destHost,default]"], "destHost default")
            .refuses(&["--proxy-strategies="], "--proxy-strategies must not be empty: name at least one")
            .refuses(&["--proxy-strategies=,"], "--proxy-strategies must not be empty: name at least one")
            .refuses(&["--proxy-strategies=desthost"], "--proxy-strategies=\"desthost\": the strategies are")
            .refuses(
                &["--proxy-strategies=destHost, default"],
                "--proxy-strategies=\" default\": the strategies are",
            ),
        flag("agent-selection", |c| format!("{:?}", c.replica.agent_selection))
            .default("LeastLoaded")
            .accepts_but_go_rejects(&["--agent-selection=random"], "Random")
            .refuses(
                &["--agent-selection=fastest"],
                "--agent-selection=\"fastest\": it must be least-loaded or random",
            ),
        flag("prefer-zone", |c| format!("{:?}", c.replica.prefer_zone))
            .default("None")
            .accepts_but_go_rejects(&["--prefer-zone=eu-1a"], "Some(\"eu-1a\")"),
        flag("backend-dial-timeout", |c| format!("{:?}", c.replica.backend_dial_timeout))
            .default("None")
            .takes(&["--backend-dial-timeout=0"], "None")
            .takes(&["--backend-dial-timeout=30s"], "Some(30s)")
            .refuses(&["--backend-dial-timeout=-1s"], "--backend-dial-timeout=-1s: it must not be below 0"),
        flag("graceful-shutdown-timeout", |c| {
            format!("{:?}", c.replica.graceful_shutdown_timeout.unwrap_or_default())
        })
        .default("0ns")
        .takes(&["--graceful-shutdown-timeout=1m"], "60s")
        .refuses(
            &["--graceful-shutdown-timeout=-1ms"],
            "--graceful-shutdown-timeout=-1ms: it must not be below 0",
        ),
        flag("xfr-channel-size", |c| c.warnings.join("; "))
            .default("")
            .takes(
                &["--xfr-channel-size=150"],
                "--xfr-channel-size has no effect: queues are limited in bytes, not in packets",
            )
            .refuses(&["--xfr-channel-size=0"], "--xfr-channel-size=0: it must be above 0")
            .refuses(&["--xfr-channel-size=-10"], "--xfr-channel-size=-10: it must be above 0"),
        flag("frontend-write-channel-size", |c| c.warnings.join("; "))
            .default("")
            .takes(
                &["--frontend-write-channel-size=0"],
                "--frontend-write-channel-size has no effect: queues are limited in bytes, not in packets",
            )
            .refuses(
                &["--frontend-write-channel-size=-1"],
                "--frontend-write-channel-size=-1: it must not be below 0",
            ),
        flag("warn-on-channel-limit", |c| c.warnings.join("; "))
            .default("")
            .takes(
                &["--warn-on-channel-limit"],
                "--warn-on-channel-limit has no effect: it is deprecated, full queues show in the metric \
                 full_receive_channels",
            )
            .refuses(
                &["--warn-on-channel-limit=x"],
                "invalid argument \"x\" for \"--warn-on-channel-limit\" flag",
            ),
    ]
}

pub(crate) fn serving() -> Vec<Entry<Config>> {
    fn admin(config: &Config) -> String {
        format!("{}, {}", config.ports.admin_bind_address, config.ports.admin_port)
    }
    fn health(config: &Config) -> String {
        format!("{}, {}", config.ports.health_bind_address, config.ports.health_port)
    }
    vec![
        flag("admin-port", admin)
            .default("127.0.0.1, 8095")
            .takes(&["--admin-port=1024"], "127.0.0.1, 1024")
            .refuses(&["--admin-port=1023"], "--admin-port=1023: it must be a port from 1024 to 49151")
            .refuses(&["--admin-port=49152"], "--admin-port=49152: it must be a port"),
        flag("admin-bind-address", admin).takes(&["--admin-bind-address="], "all interfaces, 8095"),
        flag("health-port", health)
            .default("all interfaces, 8092")
            .takes(&["--health-port=49151"], "all interfaces, 49151")
            .refuses(&["--health-port=0"], "--health-port=0: it must be a port from 1024 to 49151")
            .refuses(&["--health-port=49152"], "--health-port=49152: it must be a port"),
        flag("health-bind-address", health).takes(&["--health-bind-address=127.0.0.1"], "127.0.0.1, 8092"),
        flag("allow-probe-dials", |c| c.ports.allow_probe_dials.to_string())
            .default("false")
            .accepts_but_go_rejects(&["--allow-probe-dials"], "true"),
        flag("readiness-policy", |c| format!("{:?}", c.ports.readiness_policy))
            .default("FirstStrategy")
            .accepts_but_go_rejects(&["--readiness-policy=first-strategy"], "FirstStrategy")
            .accepts_but_go_rejects(&["--readiness-policy=any"], "Any")
            .accepts_but_go_rejects(&["--readiness-policy=all"], "All")
            .refuses(
                &["--readiness-policy=some"],
                "--readiness-policy=\"some\": it must be first-strategy, any or all",
            ),
    ]
}
