{{/* Refuses contradictory values that the schema cannot exclude, with one line that names the remedy. */}}
{{- define "konnectivity-agent.checks" -}}
{{- $values := .Values -}}
{{- if not (include "konnectivity-agent.registry" .) -}}
{{- fail (printf "image.registry is empty: name the registry that holds your images, e.g. --set image.registry=registry.example.com/konnectivity (how to build and push them: %s/images.md)" (include "konnectivity-agent.docs" .)) -}}
{{- end -}}
{{- if not $values.proxyServer.host -}}
{{- fail "proxyServer.host is empty: give the name or address that leads to every proxy-server, e.g. --set proxyServer.host=konnectivity.example.com" -}}
{{- end -}}
{{- if and (eq $values.auth.mode "mtls") (not (include "konnectivity-agent.mtlsSecret" .)) -}}
{{- fail "auth.mode is mtls, but there is no client certificate: set auth.mtls.existingSecret, or auth.mtls.certManager.enabled" -}}
{{- end -}}
{{- if and $values.auth.mtls.certManager.enabled (ne $values.auth.mode "mtls") -}}
{{- fail "auth.mtls.certManager.enabled issues a certificate that auth.mode token does not use: set auth.mode=mtls, or drop it" -}}
{{- end -}}
{{- if and $values.auth.mtls.certManager.enabled (not $values.auth.mtls.certManager.issuerRef.name) -}}
{{- fail "auth.mtls.certManager.issuerRef.name is empty: name the issuer that the servers trust for agents" -}}
{{- end -}}
{{- $cm := $values.auth.mtls.certManager -}}
{{- if and $cm.enabled (ge (include "konnectivity-agent.seconds" $cm.renewBefore | float64) (include "konnectivity-agent.seconds" $cm.duration | float64)) -}}
{{- fail (printf "auth.mtls.certManager.renewBefore is %s, not below duration (%s), which cert-manager refuses" $cm.renewBefore $cm.duration) -}}
{{- end -}}
{{- if and (not $values.ca.configMap) (not $values.ca.existingSecret) (not (hasKey (default dict $values.extraArgs) "ca-cert")) -}}
{{- fail "ca.configMap and ca.existingSecret are empty: the image has no system roots, so name the servers' authorities in one of them, or mount them and set extraArgs.ca-cert" -}}
{{- end -}}
{{- $inCluster := regexMatch "\\.svc([.:,]|$)" $values.proxyServer.host -}}
{{- if and $values.hostNetwork $inCluster (has $values.dnsPolicy (list "" "Default" "ClusterFirst")) (not $values.hostAliases) (not $values.proxyEnv.httpsProxy) -}}
{{- fail (printf "proxyServer.host is %s, the name of a Service, which the node's resolver does not know with hostNetwork: set dnsPolicy=ClusterFirstWithHostNet, or a host that nodes resolve" $values.proxyServer.host) -}}
{{- end -}}
{{- if and $values.hostNetwork $values.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled with hostNetwork: no policy holds on the host's network, so drop it and narrow the ports in the hosts' firewall, or set hostNetwork=false" -}}
{{- end -}}
{{- if and $values.hostNetwork (include "konnectivity-agent.ownSurge" .) -}}
{{- fail (printf "updateStrategy lets the %s surge on the host's network, where a new pod needs the ports that an old one has: set updateStrategy.rollingUpdate.maxSurge=0, or hostNetwork=false" $values.kind) -}}
{{- end -}}
{{- if and (include "konnectivity-agent.runsAsRoot" .) (dig "runAsNonRoot" (dig "runAsNonRoot" false (default dict $values.podSecurityContext)) (default dict $values.securityContext)) -}}
{{- fail "podSecurityContext.runAsUser is 0 and runAsNonRoot is true, which kubelet refuses: set podSecurityContext.runAsNonRoot=false" -}}
{{- end -}}
{{- if eq (int $values.ports.health) (int $values.ports.admin) -}}
{{- fail (printf "ports.health and ports.admin are both %d: give them different ports" (int $values.ports.health)) -}}
{{- end -}}
{{- if and (include "konnectivity-agent.healthOnLoopback" .) (not $values.hostNetwork) -}}
{{- fail (printf "bindAddresses.health is %s, where kubelet cannot probe a pod without hostNetwork: leave it empty" $values.bindAddresses.health) -}}
{{- end -}}
{{- if and (include "konnectivity-agent.healthOnLoopback" .) $values.prometheus.podMonitor.enabled -}}
{{- fail (printf "bindAddresses.health is %s, where Prometheus cannot scrape: leave it empty, or set prometheus.podMonitor.enabled=false" $values.bindAddresses.health) -}}
{{- end -}}
{{- if and (include "konnectivity-agent.healthOnLoopback" .) $values.prometheus.rules.enabled -}}
{{- fail (printf "bindAddresses.health is %s, where Prometheus cannot scrape, so that the alert on missing targets would fire for ever: leave it empty, or set prometheus.rules.enabled=false" $values.bindAddresses.health) -}}
{{- end -}}
{{- range $flag, $value := dict "health-server-port" "ports.health" "admin-server-port" "ports.admin" "health-server-host" "bindAddresses.health" "agent-identifiers" "agentIdentifiers" "drain-timeout" "drainTimeout" -}}
{{- if hasKey (default dict $values.extraArgs) $flag -}}
{{- fail (printf "extraArgs.%s would disagree with the pod's ports, probes, variables or times: set %s instead" $flag $value) -}}
{{- end -}}
{{- end -}}
{{- if and (ne $values.logging.format "text") (not $values.ownFlags) -}}
{{- fail "logging.format=json is a flag that Go's agent does not have: set ownFlags=true, or logging.format=text" -}}
{{- end -}}
{{- if and $values.ownFlags (ge (include "konnectivity-agent.seconds" $values.drainTimeout | float64) (float64 $values.terminationGracePeriodSeconds)) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, not above drainTimeout (%s): kubelet would kill the agent before its connections have finished" (int $values.terminationGracePeriodSeconds) $values.drainTimeout) -}}
{{- end -}}
{{- if gt (include "konnectivity-agent.seconds" $values.sync.interval | float64) (include "konnectivity-agent.seconds" $values.sync.intervalCap | float64) -}}
{{- fail (printf "sync.interval is %s, above sync.intervalCap (%s): the agent would not start, set sync.interval to sync.intervalCap or less" $values.sync.interval $values.sync.intervalCap) -}}
{{- end -}}
{{- if and (not $values.ownFlags) (or $values.destinations.deny $values.destinations.allow) -}}
{{- fail "destinations.deny and destinations.allow are flags that Go's agent does not have, so that nothing would be denied: set ownFlags=true, or drop them" -}}
{{- end -}}
{{- if and (include "konnectivity-agent.delegatesReviews" .) (not $values.rbac.serverUser) -}}
{{- fail "rbac.serverUser is empty, so that nobody could review the agents' tokens: name the user of the servers' kubeconfig (system:konnectivity-server by convention), or set rbac.serverAuthDelegator=false where the servers run in this cluster" -}}
{{- end -}}
{{- $scrape := $values.prometheus.podMonitor -}}
{{- if and $scrape.enabled $scrape.interval (gt (include "konnectivity-agent.seconds" $scrape.scrapeTimeout | float64) (include "konnectivity-agent.seconds" $scrape.interval | float64)) -}}
{{- fail (printf "prometheus.podMonitor.scrapeTimeout is %s, above interval (%s), which the Prometheus operator refuses: set scrapeTimeout to interval or less" $scrape.scrapeTimeout $scrape.interval) -}}
{{- end -}}
{{- range $value := list "commonLabels" "podLabels" -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "k8s-app" -}}
{{- if hasKey (default dict (get $values $value)) $label -}}
{{- fail (printf "%s.%s is a label by which selectors find the pods: drop it (nameOverride changes app.kubernetes.io/name)" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $least := toString $values.podDisruptionBudget.minAvailable -}}
{{- $pods := trimSuffix "%" $least -}}
{{- if hasSuffix "%" $least -}}
{{- $pods = div (add (mul (int $pods) (int $values.replicaCount)) 99) 100 -}}
{{- end -}}
{{- if and $values.podDisruptionBudget.enabled (eq $values.kind "Deployment") -}}
{{- if and (ne $least "") (gt (int $values.replicaCount) 0) (ge (int $pods) (int $values.replicaCount)) -}}
{{- fail (printf "podDisruptionBudget.minAvailable is %s and replicaCount is %d: no node with such a pod could be drained, set minAvailable below replicaCount" $least (int $values.replicaCount)) -}}
{{- end -}}
{{- $most := toString $values.podDisruptionBudget.maxUnavailable -}}
{{- if and (eq $least "") (eq (int (trimSuffix "%" $most)) 0) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable is %s: no node with such a pod could be drained, set it to 1 or more, or podDisruptionBudget.enabled=false" $most) -}}
{{- end -}}
{{- end -}}
{{- if and (not $values.ownFlags) (regexMatch ",|^([^:]*|\\[.*\\]):[0-9]*$" $values.proxyServer.host) -}}
{{- fail (printf "proxyServer.host is %s, but Go's agent takes one host without a port: write the port in proxyServer.port, or set ownFlags=true" $values.proxyServer.host) -}}
{{- end -}}
{{- range $values.extraVolumes -}}
{{- if eq .name "konnectivity" -}}
{{- fail "extraVolumes has a volume konnectivity, as the chart has: give it another name" -}}
{{- end -}}
{{- end -}}
{{- include "konnectivity-agent.checkIdentifiers" . -}}
{{- end -}}

{{- define "konnectivity-agent.checkIdentifiers" -}}
{{- $values := .Values -}}
{{- $identifiers := $values.agentIdentifiers -}}
{{- $variables := list "HOST_IP" "NODE_IP" "NODE_NAME" "POD_IP" "POD_NAME" -}}
{{- range $values.extraEnv -}}{{- $variables = append $variables .name -}}{{- end -}}
{{- range regexFindAll "\\$\\([^)]*\\)" $identifiers -1 -}}
{{- if not (has (. | trimPrefix "$(" | trimSuffix ")") $variables) -}}
{{- fail (printf "agentIdentifiers uses %s, which nothing defines: use HOST_IP, NODE_IP, NODE_NAME, POD_IP or POD_NAME, or define it in extraEnv" .) -}}
{{- end -}}
{{- end -}}
{{- $known := "^(host=.+|zone=.+|ipv4=((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])|ipv6=[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*|cidr=([0-9.]{7,}/([12]?[0-9]|3[0-2])|[0-9A-Fa-f.:]*:[0-9A-Fa-f.:]*/(1[01][0-9]|12[0-8]|[1-9]?[0-9]))|default-route=true|[^=]*=.*[$][(].*)?$" -}}
{{- range splitList "&" $identifiers -}}
{{- if not (regexMatch $known .) -}}
{{- fail (printf "agentIdentifiers has %s, which can never match: ipv4 and ipv6 take a whole address, cidr an address and the length of its prefix, default-route true" .) -}}
{{- end -}}
{{- end -}}
{{- if and (not $values.ownFlags) (regexMatch "(^|&)zone=" $identifiers) -}}
{{- fail "agentIdentifiers has a zone, a key that Go's agent refuses: set ownFlags=true, or drop it" -}}
{{- end -}}
{{- $strategies := $values.proxyServer.strategies -}}
{{- if and (has "destHost" $strategies) (not (regexMatch "(^|&)(host|ipv4|ipv6|cidr)=" $identifiers)) -}}
{{- fail "proxyServer.strategies has destHost, but agentIdentifiers names no host, ipv4, ipv6 or cidr, so that it would never choose an agent: on a DaemonSet set agentIdentifiers=ipv4=$(HOST_IP)&host=$(NODE_NAME)" -}}
{{- end -}}
{{- if and (has "defaultRoute" $strategies) (not (has "default" $strategies)) (not (has "destHost" $strategies)) (not (contains "default-route=true" $identifiers)) -}}
{{- fail "proxyServer.strategies is defaultRoute, but agentIdentifiers has no default-route=true, so that no agent would ever be chosen" -}}
{{- end -}}
{{- if and (eq $values.kind "Deployment") (has "destHost" $strategies) (regexMatch "\\$\\((HOST_IP|NODE_IP|NODE_NAME)\\)" $identifiers) (not (has "default" $strategies)) (not (has "defaultRoute" $strategies)) -}}
{{- fail "proxyServer.strategies is destHost alone and kind is Deployment: nodes without an agent would be out of reach, set kind=DaemonSet, or add default to the servers' strategies" -}}
{{- end -}}
{{- end -}}
