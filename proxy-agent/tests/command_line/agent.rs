//! Flags of the agent's id, of its health and admin ports, and of the leases.

use super::table::Entry;
use proxy_agent::args::Config;
use proxy_agent::endpoint::DestinationRule;

use super::flag;

pub(crate) fn identity() -> Vec<Entry<Config>> {
    vec![
        flag("agent-id", |c| c.servers.agent_id.clone())
            .default("from-the-environment")
            .takes(&["--agent-id=a"], "a")
            .takes(&["--agent-id="], "from-the-environment")
            .rejects_but_go_accepts(
                &["--agent-id=a\u{1}"],
                "--agent-id=\"a\\u{1}\": it travels in a gRPC header",
            ),
        flag("agent-identifiers", |c| c.servers.agent_identifiers.clone())
            .default("")
            .takes(&["--agent-identifiers=host=a&host=b&ipv6=::1"], "host=a&host=b&ipv6=::1")
            .takes(
                &["--agent-identifiers=cidr=127.0.0.1/16&default-route=true"],
                "cidr=127.0.0.1/16&default-route=true",
            )
            .takes(&["--agent-identifiers=h%6Fst=a%20b"], "h%6Fst=a%20b")
            .takes(&["--agent-identifiers=ipv4=${HOST_IP}"], "ipv4=${HOST_IP}")
            .takes(&["--agent-identifiers=ipv4=10.0.0.1&ipv6="], "ipv4=10.0.0.1&ipv6=")
            .takes(&["--agent-identifiers=host=a&ipv6=:::::"], "host=a&ipv6=:::::")
            .rejects_but_go_accepts(
                &["--agent-identifiers=ipv4=1.2.3"],
                "--agent-identifiers=\"ipv4=1.2.3\": ipv4=1.2.3, which matches no target; write ipv4=ADDRESS",
            )
            .takes(&["--agent-identifiers", "&"], "&")
            .refuses(
                &["--agent-identifiers=uid=1"],
                "--agent-identifiers=\"uid=1\": unknown key \"uid\"; the keys",
            )
            .refuses(&["--agent-identifiers=node1"], "--agent-identifiers=\"node1\": unknown key \"node1\"")
            .refuses(&["--agent-identifiers=Host=a"], "--agent-identifiers=\"Host=a\": unknown key \"Host\"")
            .refuses(
                &["--agent-identifiers=host=a;ipv4=b"],
                "--agent-identifiers=\"host=a;ipv4=b\": invalid semicolon",
            )
            .refuses(
                &["--agent-identifiers=host=%zz"],
                "--agent-identifiers=\"host=%zz\": invalid URL escape \"%zz\"",
            )
            .rejects_but_go_accepts(
                &["--agent-identifiers=host=zo\u{eb}"],
                "--agent-identifiers=\"host=zo\u{eb}\": it travels in a gRPC header",
            ),
    ]
}

pub(crate) fn endpoints() -> Vec<Entry<Config>> {
    // A rule does not keep its text.
    fn rules(rules: &[DestinationRule]) -> String {
        let texts = ["10.0.0.0/8:22", "[fd00::/8]:1-2", "*.a", "a", "*:443"];
        let text = |rule: &DestinationRule| {
            texts.iter().find(|text| DestinationRule::parse(text) == Ok(rule.clone()))
        };
        rules.iter().map(|rule| text(rule).copied().unwrap_or("?")).collect::<Vec<_>>().join(" ")
    }
    vec![
        flag("allow-cloud-metadata", |c| c.servers.allow_cloud_metadata.to_string())
            .default("false")
            .accepts_but_go_rejects(&["--allow-cloud-metadata"], "true")
            .accepts_but_go_rejects(&["--allow-cloud-metadata=false"], "false"),
        flag("deny-destinations", |c| rules(&c.servers.deny_destinations))
            .default("")
            .accepts_but_go_rejects(
                &["--deny-destinations=10.0.0.0/8:22,[fd00::/8]:1-2", "--deny-destinations=*.a"],
                "10.0.0.0/8:22 [fd00::/8]:1-2 *.a",
            )
            .refuses(&["--deny-destinations=a:b"], "--deny-destinations=\"a:b\": its port must be"),
        flag("allow-destinations", |c| rules(&c.servers.allow_destinations))
            .default("")
            .accepts_but_go_rejects(&["--allow-destinations=a,*:443"], "a *:443")
            .refuses(&["--allow-destinations=a/b"], "--allow-destinations=\"a/b\": it is no network"),
    ]
}

pub(crate) fn serving() -> Vec<Entry<Config>> {
    fn admin(config: &Config) -> String {
        format!("{}, {}", config.ports.admin_bind_address, config.ports.admin_server_port)
    }
    fn health(config: &Config) -> String {
        format!("{}, {}", config.ports.health_server_host, config.ports.health_server_port)
    }
    vec![
        flag("health-server-port", health)
            .default("all interfaces, 8093")
            .takes(&["--health-server-port=1"], "all interfaces, 1")
            .takes(&["--health-server-port=65535"], "all interfaces, 65535")
            .refuses(&["--health-server-port=0"], "--health-server-port=0: it must be a port from 1 to 65535")
            .rejects_but_go_accepts(
                &["--health-server-port=70000"],
                "--health-server-port=70000: it must be a port",
            ),
        flag("health-server-host", health).takes(&["--health-server-host=127.0.0.1"], "127.0.0.1, 8093"),
        flag("admin-server-port", admin)
            .default("127.0.0.1, 8094")
            .takes(&["--admin-server-port=9000"], "127.0.0.1, 9000")
            .refuses(
                &["--admin-server-port=-5"],
                "--admin-server-port=-5: it must be a port from 1 to 65535",
            ),
        flag("admin-bind-address", admin).takes(&["--admin-bind-address="], "all interfaces, 8094"),
        flag("min-ready-servers", |c| c.ports.min_ready_servers.to_string())
            .default("1")
            .accepts_but_go_rejects(&["--min-ready-servers=3"], "3")
            .refuses(&["--min-ready-servers=0"], "--min-ready-servers=0: it must be above 0")
            .refuses(&["--min-ready-servers=-1"], "--min-ready-servers=-1: it must be above 0"),
        flag("drain-timeout", |c| format!("{:?}", c.ports.drain_timeout))
            .default("None")
            .accepts_but_go_rejects(&["--drain-timeout=0"], "None")
            .accepts_but_go_rejects(&["--drain-timeout=5m"], "Some(300s)")
            .refuses(&["--drain-timeout=-1s"], "--drain-timeout=-1s: it must not be below 0"),
    ]
}

pub(crate) fn kubernetes() -> Vec<Entry<Config>> {
    vec![
        flag("count-server-leases", |c| c.kube.count_server_leases.to_string())
            .default("false")
            .takes(&["--count-server-leases=false"], "false")
            .takes(&["--count-server-leases"], "true"),
        flag("lease-namespace", |c| c.kube.lease_namespace.clone())
            .default("kube-system")
            .takes(&["--lease-namespace=x"], "x"),
        flag("lease-label-selector", |c| c.kube.lease_label_selector.to_string())
            .default("k8s-app=konnectivity-server")
            .takes(&["--lease-label-selector=a in (b,c),!d"], "a in (b,c),!d")
            .takes(&["--lease-label-selector="], "")
            .takes(&["--lease-label=a=b"], "a=b")
            .takes(&["--lease-label=a=b", "--lease-label-selector=c"], "c")
            .takes(&["--lease-label-selector=c", "--lease-label=a=b"], "a=b")
            .refuses(
                &["--lease-label-selector=a b"],
                "invalid argument \"a b\" for \"--lease-label-selector\" flag: found \"b\" where one of = == != in",
            )
            .refuses(
                &["--count-server-leases", "--lease-label="],
                "--lease-label-selector (or --lease-label) must not be empty: every lease of the namespace would count as a server",
            )
            .refuses(
                &["--lease-label=a=b c"],
                "invalid argument \"a=b c\" for \"--lease-label\" flag: \"b c\" is no label value",
            )
            .refuses(
                &["--lease-label-selector=-a"],
                "invalid argument \"-a\" for \"--lease-label-selector\" flag: \"-a\" is no label key",
            ),
        flag("kubeconfig", |c| c.kube.kubeconfig.is_some().to_string())
            .default("false")
            .takes(&["--kubeconfig="], "false")
            .takes(&["--kubeconfig={file}"], "true")
            .refuses(&["--kubeconfig={none}"], "--kubeconfig: "),
        flag("kube-api-content-type", |c| c.kube.kube_api_content_type.clone())
            .default("application/vnd.kubernetes.protobuf")
            .takes(&["--kube-api-content-type="], ""),
    ]
}
