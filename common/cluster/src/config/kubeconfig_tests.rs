use super::*;
use crate::config::TlsFiles;

fn load_text(text: &str) -> (tempfile::TempDir, Result<Config, String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    std::fs::write(&path, text).unwrap();
    let loaded = load(&path);
    (folder, loaded)
}

fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u, namespace: n}}}}]\n\
         clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    )
}

fn shown(cluster: &str, user: &str) -> Result<String, String> {
    load_text(&kubeconfig(cluster, user)).1.map(|config| config.to_string())
}

const SERVER: &str = "server: 'https://10.0.0.1:6443'";

#[test]
fn every_kind_of_user_is_understood() {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    params.distinguished_name.push(rcgen::DnType::CommonName, "admin");
    let chain = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let certificate =
        format!("client-certificate-data: {}, client-key-data: czNjcmV0", STANDARD.encode(chain));
    let rows = [
        ("", "no credentials"),
        ("token: s3cret", "token"),
        ("client-certificate: a.crt, client-key: a.key", "client certificate (unreadable)"),
        (&certificate, "client certificate O=system:masters, CN=admin"),
        (
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, args: [x], env: null}",
            "plug-in \"aws\"",
        ),
        ("token: s3cret, exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}", "token"),
        (
            "client-certificate: a.crt, client-key: a.key, exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}",
            "client certificate (unreadable)",
        ),
    ];
    for (user, want) in rows {
        assert_eq!(shown(SERVER, user).unwrap(), format!("https://10.0.0.1:6443 with {want}"), "{user}");
    }
    let (folder, config) = load_text(&kubeconfig(SERVER, "tokenFile: t, token: s3cret"));
    let config = config.unwrap();
    assert!(config.to_string().ends_with(&format!("token file {}/t", folder.path().display())), "{config}");
}

/// Source: client-go `rest.DefaultServerUrlFor`.
#[test]
fn server_without_a_scheme_has_tls_if_the_kubeconfig_has_settings_of_it() {
    let rows = [
        ("", "", "http://10.0.0.1:6443"),
        ("certificate-authority: ca.crt", "token: s3cret", "https://10.0.0.1:6443"),
        ("insecure-skip-tls-verify: true", "token: s3cret", "https://10.0.0.1:6443"),
        ("", "client-certificate: a.crt, client-key: a.key", "https://10.0.0.1:6443"),
    ];
    for (cluster, user, want) in rows {
        let shown = shown(&format!("server: '10.0.0.1:6443', {cluster}"), user).unwrap();
        assert_eq!(shown.split(' ').next(), Some(want), "{cluster} {user}");
    }
}

#[test]
fn relative_files_count_from_the_kubeconfig_and_data_outranks_them() {
    let (folder, config) = load_text(&kubeconfig(
        &format!("{SERVER}, certificate-authority: pki/ca.crt"),
        "client-certificate: /a, client-key: b",
    ));
    let tls = config.unwrap().tls;
    let file = |path: &str| Pem::File(folder.path().join(path));
    let want = TlsFiles {
        ca: Some(file("pki/ca.crt")),
        identity: Some((file("/a"), file("b"))),
        ..TlsFiles::default()
    };
    assert!(tls == want);
    let cluster = format!(
        "{SERVER}, certificate-authority: x, certificate-authority-data: Y2E=, tls-server-name: kubernetes"
    );
    let tls = load_text(&kubeconfig(&cluster, "")).1.unwrap().tls;
    let want = TlsFiles {
        ca: Some(Pem::Data(b"ca".to_vec())),
        server_name: Some("kubernetes".into()),
        ..TlsFiles::default()
    };
    assert!(tls == want);
}

/// As `base64` without `-w0` wraps it, with either end of line.
#[test]
fn data_may_be_wrapped() {
    let wrapped = |text: &[u8], end: &str| {
        let encoded = STANDARD.encode(text);
        let lines: Vec<_> = encoded.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
        assert!(lines.len() > 1);
        serde_json::json!(lines.join(end) + end).to_string()
    };
    let [ca, chain, key] = ["authority", "chain", "key"].map(|text| text.repeat(20).into_bytes());
    for end in ["\n", "\r\n"] {
        let cluster = format!("{SERVER}, certificate-authority-data: {}", wrapped(&ca, end));
        let (chain_data, key_data) = (wrapped(&chain, end), wrapped(&key, end));
        let user = format!("client-certificate-data: {chain_data}, client-key-data: {key_data}");
        let tls = load_text(&kubeconfig(&cluster, &user)).1.unwrap().tls;
        assert!(tls.ca == Some(Pem::Data(ca.clone())));
        assert!(tls.identity == Some((Pem::Data(chain.clone()), Pem::Data(key.clone()))));
    }
    let block = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\nclusters:\n- name: k\n  cluster:\n    \
         {SERVER}\n    certificate-authority-data: |\n      YXV0\n      aG9yaXR5\n"
    );
    assert!(load_text(&block).1.unwrap().tls.ca == Some(Pem::Data(b"authority".to_vec())));
    let blank = kubeconfig(&format!("{SERVER}, certificate-authority-data: 'YXV0 aG9yaXR5'"), "");
    assert!(load_text(&blank).1.err().unwrap().contains("certificate-authority-data is not base64"));
}

#[test]
fn insecure_settings_are_reported() {
    let warnings =
        |cluster: &str| load_text(&kubeconfig(cluster, "")).1.unwrap().warnings().collect::<Vec<_>>();
    assert!(warnings(SERVER).is_empty());
    assert!(
        warnings(&format!("{SERVER}, insecure-skip-tls-verify: true"))[0]
            .contains("insecure-skip-tls-verify")
    );
    assert!(warnings("server: 'http://127.0.0.1:8001'")[0].contains("in the clear"));
}

#[test]
fn credentials_need_tls_unless_the_server_is_on_this_host() {
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}";
    for user in ["token: s3cret", "tokenFile: t", exec] {
        for server in ["http://10.0.0.1:8080", "http://api.example", "10.0.0.1:8080"] {
            let error = shown(&format!("server: '{server}'"), user).unwrap_err();
            assert!(error.contains("is not https") && error.contains("write https://"), "{error}");
            assert!(error.lines().count() == 1 && !error.contains("s3cret"), "{error}");
        }
        for server in
            ["http://127.0.0.1:8001", "http://[::1]:8001", "http://localhost:8001", "localhost:8001"]
        {
            shown(&format!("server: '{server}'"), user).unwrap();
            let error =
                shown(&format!("server: '{server}', proxy-url: 'http://proxy:3128'"), user).unwrap_err();
            assert!(error.contains("is not https"), "{error}");
        }
    }
    shown("server: 'http://10.0.0.1:8080'", "").unwrap();
}

/// The fields of client-go's `ConfigToExecCluster`.
#[tokio::test]
async fn plug_in_gets_the_cluster_info() {
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, provideClusterInfo: true, \
                args: ['-c', 'printf %s \"$KUBERNETES_EXEC_INFO\" > \"${0%/*}/info\"', ";
    let cluster = format!(
        "{SERVER}, tls-server-name: kubernetes, proxy-url: 'http://u:p@proxy:3128', certificate-authority: ca.crt, \
         extensions: [{{name: other, extension: 1}}, \
         {{name: client.authentication.k8s.io/exec, extension: {{audience: a}}}}]"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    std::fs::write(&path, kubeconfig(&cluster, &format!("{exec}{}]}}", path.display()))).unwrap();
    assert!(load(&path).err().unwrap().contains("certificate-authority"));
    std::fs::write(folder.path().join("ca.crt"), "authority").unwrap();
    let credentials = load(&path).unwrap().credentials;
    assert!(credentials.present().await.is_err(), "it prints nothing");
    let info = std::fs::read_to_string(folder.path().join("info")).unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    let want = serde_json::json!({
        "server": "https://10.0.0.1:6443",
        "tls-server-name": "kubernetes",
        "certificate-authority-data": STANDARD.encode("authority"),
        "proxy-url": "http://u:p@proxy:3128",
        "config": { "audience": "a" },
    });
    assert_eq!(info["spec"]["cluster"], want);
}

#[test]
fn a_proxy_has_the_port_of_its_scheme() {
    for (url, shown, tls) in
        [("http://p", "p:80", false), ("https://p", "p:443", true), ("https://p:3128", "p:3128", true)]
    {
        let config = load_text(&kubeconfig(&format!("{SERVER}, proxy-url: '{url}'"), "")).1.unwrap();
        let proxy = config.proxy.unwrap();
        assert_eq!((proxy.to_string().as_str(), proxy.tls), (shown, tls), "{url}");
    }
}

#[test]
fn faults_are_one_line_with_the_fix_and_no_secret() {
    let rows = [
        (kubeconfig("server: ''", ""), "server \"\""),
        (kubeconfig("server: 'ftp://10.0.0.1'", ""), "server \"ftp://10.0.0.1\": its scheme"),
        (kubeconfig("server: 'https://me:s3cret@10.0.0.1'", ""), "server: it has credentials"),
        (kubeconfig("server: 'https://me:a/s3cret@10.0.0.1'", ""), "server: its port"),
        (kubeconfig("server: 'https://me:a s3cret@10.0.0.1'", ""), "server: it has blanks"),
        (kubeconfig("server: 'https://10.0.0.1/?token=s3cret'", ""), "server: it has blanks, a query"),
        (kubeconfig(SERVER, "client-certificate: a"), "no client-key: give both"),
        (kubeconfig(SERVER, "client-certificate-data: '%'"), "client-certificate-data is not base64"),
        (kubeconfig(SERVER, "auth-provider: {name: gcp}"), "use exec instead"),
        (kubeconfig(SERVER, "username: a, password: s3cret"), "username was removed from Kubernetes"),
        (kubeconfig(SERVER, "token: s3cret, as: x, as-groups: [y]"), "as is not supported"),
        (
            kubeconfig(SERVER, "exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: a}"),
            "neither",
        ),
        (
            kubeconfig(
                SERVER,
                "exec: {apiVersion: client.authentication.k8s.io/v1, command: a, interactiveMode: Always}",
            ),
            "terminal",
        ),
        (kubeconfig(SERVER, "token: {s3cret: 1}"), "is no kubeconfig"),
        (
            kubeconfig(&format!("{SERVER}, proxy-url: 'http://s3cret@'"), ""),
            "proxy-url is not usable: it has no host",
        ),
        (
            kubeconfig(&format!("{SERVER}, proxy-url: 'socks5://u:s3cret@p'"), ""),
            "the proxy URL in proxy-url is not usable: SOCKS is not supported",
        ),
        (kubeconfig(&format!("{SERVER}, proxy-url: 'ftp://p'"), ""), "neither http nor https"),
        ("current-context: x".into(), "no context named \"x\""),
        ("{}".into(), "current-context is empty"),
        ("a: [".into(), "is no kubeconfig"),
        ("\n".into(), "is no kubeconfig: it is empty"),
    ];
    for (text, part) in rows {
        let error = load_text(&text).1.err().unwrap();
        assert!(error.contains(part) && error.lines().count() == 1 && !error.contains("s3cret"), "{error}");
    }
    assert!(load(Path::new("/nowhere/at/all")).err().unwrap().contains("cannot read"));
}
