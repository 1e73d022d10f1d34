# Functions for hack/release-check and hack/engine-check, which source this file: start a pair of programs and fetch a page
# through it. Needs a folder $work, and two functions: fail, and said, which prints the last log lines of the pair. Needs
# openssl and curl.

# A free port below the kernel's ephemeral range.
free_port() {
    local port
    while port=$((12000 + RANDOM % 18000)); (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

# Creates a CA and one certificate for everything, in $work/pki: both listeners, the agent, and kube-apiserver as their client.
certificates() {
    local pki=$work/pki ec=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
    mkdir "$pki"
    {
        openssl req -x509 "${ec[@]}" -subj /CN=authority -days 1 -keyout "$work/ca.key" -out "$pki/ca.crt" &&
            openssl req "${ec[@]}" -subj /CN=pair -keyout "$pki/tls.key" -out "$work/tls.csr" &&
            openssl x509 -req -in "$work/tls.csr" -CA "$pki/ca.crt" -CAkey "$work/ca.key" -CAcreateserial -days 1 -out "$pki/tls.crt" \
                -extfile <(echo 'subjectAltName=IP:127.0.0.1')
    } 2>"$work/openssl.log" || fail "$(cat "$work/openssl.log")"
    chmod 0755 "$pki"
    chmod 0644 "$pki"/*
}

# Sets server_flags and agent_flags for a pair on fresh ports. Argument: the path of $work/pki as the programs see it.
pair_flags() {
    front=$(free_port) ready=$(free_port) endpoint=$(free_port)
    local pki=$1 agents
    agents=$(free_port) server_admin=$(free_port) agent_admin=$(free_port)
    server_flags=(--mode=http-connect --server-bind-address=127.0.0.1 "--server-port=$front" --agent-bind-address=127.0.0.1 "--agent-port=$agents"
        --health-bind-address=127.0.0.1 "--health-port=$ready" "--admin-port=$server_admin" "--server-ca-cert=$pki/ca.crt"
        "--server-cert=$pki/tls.crt" "--server-key=$pki/tls.key" "--cluster-ca-cert=$pki/ca.crt" "--cluster-cert=$pki/tls.crt"
        "--cluster-key=$pki/tls.key")
    agent_flags=(--proxy-server-host=127.0.0.1 "--proxy-server-port=$agents" "--ca-cert=$pki/ca.crt" "--agent-cert=$pki/tls.crt"
        "--agent-key=$pki/tls.key" --health-server-host=127.0.0.1 "--health-server-port=$endpoint" "--admin-server-port=$agent_admin"
        --drain-timeout=10s)
}

# Waits for the agent, and fetches the agent's own page through the pair, by a name that only the agent resolves. $1: a name for
# errors.
page_through_the_pair() {
    for _ in $(seq 150); do
        if curl --silent --fail --max-time 2 "http://127.0.0.1:$ready/readyz" >/dev/null; then break; fi
        sleep 0.2
    done
    curl --silent --show-error --fail --max-time 10 --proxytunnel --proxy "https://127.0.0.1:$front" --proxy-cacert "$work/pki/ca.crt" \
        --proxy-cert "$work/pki/tls.crt" --proxy-key "$work/pki/tls.key" "http://endpoint.test:$endpoint/metrics" >"$work/page" 2>"$work/curl.log" ||
        fail "$1: no page through the pair: $(cat "$work/curl.log")
$(said 2>&1)"
    grep -q '^konnectivity_network_proxy_agent_open_server_connections 1$' "$work/page" || fail "$1: not the agent's page"
}
