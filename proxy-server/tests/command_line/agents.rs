//! Flags of the agent port, of TLS, and of agent authentication.

use super::table::Entry;
use proxy_server::args::Config;

use super::flag;

pub(crate) fn agents() -> Vec<Entry<Config>> {
    fn bind(config: &Config) -> String {
        format!("{}, {}", config.agents.agent_bind_address, config.agents.agent_port)
    }
    fn suites(config: &Config) -> String {
        let suites = format!("{:?}", config.agents.cipher_suites.value);
        suites.trim_start_matches("CipherSuites { tls12: ").trim_end_matches(" }").to_owned()
    }
    vec![
        flag("agent-port", bind)
            .default("all interfaces, 8091")
            .takes(&["--agent-port=1024"], "all interfaces, 1024")
            .takes(&["--agent-port=49151"], "all interfaces, 49151")
            .refuses(&["--agent-port=0"], "--agent-port=0: it must be a port from 1024 to 49151")
            .refuses(&["--agent-port=1023"], "--agent-port=1023: it must be")
            .refuses(&["--agent-port=49152"], "--agent-port=49152: it must be"),
        flag("agent-bind-address", bind).takes(&["--agent-bind-address=::"], "::, 8091"),
        flag("cluster-cert", |c| format!("{}", c.agent_tls.cert.is_file()))
            .default("true")
            .refuses(&["--cluster-cert={none}"], "--cluster-cert: ")
            .refuses(&["--cluster-cert="], "--cluster-key needs --cluster-cert: give both, or neither")
            .refuses(
                &["--cluster-cert=", "--cluster-key="],
                "--cluster-cert must not be empty: give --cluster-cert",
            ),
        flag("cluster-key", |c| format!("{}", c.agent_tls.key.is_file()))
            .default("true")
            .refuses(&["--cluster-key={none}"], "--cluster-key: ")
            .refuses(&["--cluster-key="], "--cluster-cert needs --cluster-key: give both, or neither"),
        flag("cluster-ca-cert", |c| format!("{}", c.agent_tls.client_ca.is_some()))
            .default("false")
            .takes(&["--cluster-ca-cert={file}"], "true")
            .takes(&["--cluster-ca-cert", ""], "false")
            .refuses(&["--cluster-ca-cert={none}"], "--cluster-ca-cert: "),
        flag("keepalive-time", |c| format!("{:?}", c.keepalive.time))
            .default("3600s")
            .takes(&["--keepalive-time=1h30m"], "5400s")
            .takes(&["--keepalive-time", "10.5s"], "10.5s")
            .takes(&["--keepalive-time=0s"], "7200s")
            .takes(&["--keepalive-time=100ms"], "1s")
            .refuses(
                &["--keepalive-time=1d"],
                "invalid argument \"1d\" for \"--keepalive-time\" flag: unknown unit",
            )
            .refuses(
                &["--keepalive-time="],
                "invalid argument \"\" for \"--keepalive-time\" flag: it must be",
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
        flag("cipher-suites", suites)
            .default("None")
            .takes(&["--cipher-suites="], "None")
            .accepts_but_go_rejects(&["--cipher-suites=[]"], "None")
            .takes(
                &["--cipher-suites=TLS_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
                "Some([TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256])",
            )
            .accepts_but_go_rejects(
                &["--cipher-suites=[TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]"],
                "Some([TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256])",
            )
            .takes(
                &[
                    "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
                    "--cipher-suites",
                    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
                ],
                "Some([TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384])",
            )
            .takes(&["--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"], "Some([])")
            .takes(
                &["--tls-min-version=VersionTLS13", "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"],
                "Some([])",
            )
            .refuses(
                &["--cipher-suites=TLS_RSA_WITH_AES_128_GCM_SHA256"],
                "--cipher-suites=\"TLS_RSA_WITH_AES_128",
            )
            .refuses(
                &["--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"],
                "--cipher-suites=\"TLS_ECDHE_RSA",
            )
            .refuses(&["--cipher-suites=x"], "--cipher-suites=\"x\": it is unknown or insecure")
            .refuses(&["--cipher-suites=TLS_AES_256_GCM_SHA384,"], "--cipher-suites=\"\": it is unknown")
            .refuses(&["--cipher-suites=a\"b"], "--cipher-suites=\"a\\\"b\": it is unknown or insecure"),
        flag("tls-min-version", |c| format!("{:?}", c.agents.tls_min_version.value))
            .default("Tls12")
            .takes(&["--tls-min-version="], "Tls12")
            .takes(&["--tls-min-version=VersionTLS10"], "Tls12")
            .takes(&["--tls-min-version=VersionTLS11"], "Tls12")
            .takes(&["--tls-min-version=VersionTLS12"], "Tls12")
            .takes(&["--tls-min-version=VersionTLS13"], "Tls13")
            .refuses(&["--tls-min-version=TLS12"], "--tls-min-version=\"TLS12\": it must be VersionTLS10, "),
        flag("certificate-reload-interval", |c| format!("{:?}", c.agents.certificate_reload_interval))
            .default("Some(10s)")
            .accepts_but_go_rejects(&["--certificate-reload-interval=1m"], "Some(60s)")
            .accepts_but_go_rejects(&["--certificate-reload-interval=0"], "None")
            .refuses(
                &["--certificate-reload-interval=-1s"],
                "--certificate-reload-interval=-1s: it must not be below 0",
            ),
    ]
}

pub(crate) fn access() -> Vec<Entry<Config>> {
    fn token(config: &Config) -> String {
        config.token_auth.as_ref().map_or_else(
            || "None".to_owned(),
            |t| format!("{} {} {} {:?}", t.namespace, t.service_account, t.audience, t.review_every),
        )
    }
    vec![
        flag("require-agent-auth", |c| {
            (c.agent_tls.client_ca.is_some() || c.token_auth.is_some()).to_string()
        })
        .default("false")
        .accepts_but_go_rejects(&["--require-agent-auth=false"], "false")
        .accepts_but_go_rejects(&["--require-agent-auth", "--cluster-ca-cert={file}"], "true")
        .accepts_but_go_rejects(
            &[
                "--require-agent-auth",
                "--agent-namespace=a",
                "--agent-service-account=b",
                "--authentication-audience=c",
            ],
            "true",
        )
        .refuses(&["--require-agent-auth"], "--require-agent-auth needs --cluster-ca-cert: give the"),
        flag("agent-namespace", token)
            .default("None")
            .takes(&["--agent-namespace=", "--agent-service-account=", "--authentication-audience="], "None")
            .takes(
                &["--agent-namespace=a", "--agent-service-account=b", "--authentication-audience=c"],
                "a b c None",
            )
            .refuses(&["--agent-namespace=a"], "--agent-namespace needs --agent-service-account: token")
            .refuses(
                &["--agent-namespace=a", "--cluster-ca-cert={file}"],
                "--cluster-ca-cert cannot be used with --agent-namespace: ",
            ),
        flag("agent-service-account", token)
            .refuses(&["--agent-service-account=b"], "--agent-service-account needs --agent-namespace: token")
            .refuses(
                &["--agent-service-account=b", "--authentication-audience=c"],
                "--agent-service-account needs --agent-namespace: token",
            ),
        flag("authentication-audience", token).refuses(
            &["--authentication-audience=c"],
            "--authentication-audience needs --agent-namespace: token",
        ),
        flag("token-review-interval", token)
            .accepts_but_go_rejects(
                &[
                    "--agent-namespace=a",
                    "--agent-service-account=b",
                    "--authentication-audience=c",
                    "--token-review-interval=10m",
                ],
                "a b c Some(600s)",
            )
            .accepts_but_go_rejects(
                &[
                    "--agent-namespace=a",
                    "--agent-service-account=b",
                    "--authentication-audience=c",
                    "--token-review-interval=1s",
                ],
                "a b c Some(60s)",
            )
            .accepts_but_go_rejects(&["--token-review-interval=0"], "None")
            .refuses(&["--token-review-interval=-1s"], "--token-review-interval=-1s: it must not be below 0"),
        flag("agent-identity-binding", |c| format!("{:?}", c.access.agent_identity_binding))
            .default("Log")
            .accepts_but_go_rejects(&["--agent-identity-binding=off"], "Off")
            .accepts_but_go_rejects(
                &["--agent-identity-binding=enforce", "--cluster-ca-cert={file}"],
                "Enforce",
            )
            .refuses(
                &["--agent-identity-binding=enforce"],
                "--agent-identity-binding needs --cluster-ca-cert: give the authorities",
            )
            .refuses(
                &["--agent-identity-binding=on"],
                "--agent-identity-binding=\"on\": it must be off, log",
            ),
        flag("agent-identity-source-address", |c| c.access.agent_identity_source_address.to_string())
            .default("false")
            .accepts_but_go_rejects(&["--agent-identity-source-address"], "true"),
        flag("agent-allowed-names", |c| c.access.agent_allowed_names.join(" "))
            .default("")
            .accepts_but_go_rejects(&["--agent-allowed-names=a,b", "--cluster-ca-cert={file}"], "a b")
            .refuses(
                &["--agent-allowed-names=a"],
                "--agent-allowed-names needs --cluster-ca-cert: names are",
            ),
        flag("default-route-allowed-names", |c| c.access.default_route_allowed_names.join(" "))
            .default("")
            .accepts_but_go_rejects(&["--default-route-allowed-names=a,b"], "a b"),
    ]
}
