{{/* Refuses contradictory values that the schema cannot exclude, with one line that names the remedy. */}}
{{- define "konnectivity-server.checks" -}}
{{- $values := .Values -}}
{{- if not (include "konnectivity-server.registry" .) -}}
{{- fail (printf "image.registry is empty: name the registry that holds your images, e.g. --set image.registry=registry.example.com/konnectivity (how to build and push them: %s/images.md)" (include "konnectivity-server.docs" .)) -}}
{{- end -}}
{{- if and (eq $values.kind "Deployment") (contains "uds" (include "konnectivity-server.frontendTypes" $)) -}}
{{- fail "kind Deployment with frontend.type uds: kube-apiserver cannot reach a socket in another pod, set frontend.type=tcp and mode=http-connect, or kind=DaemonSet" -}}
{{- end -}}
{{- if and (eq $values.mode "grpc") (eq $values.frontend.type "tcp") $values.egressSelector.render -}}
{{- fail "mode grpc with frontend.type tcp: kube-apiserver speaks gRPC over a Unix socket only, set mode=http-connect or frontend.type=uds (or egressSelector.render=false for clients of your own)" -}}
{{- end -}}
{{- if and (not (include "konnectivity-server.serverCount" .)) (not $values.leases.enabled) -}}
{{- fail (printf "serverCount is auto, which a %s cannot tell: set serverCount to the number of your servers, or leases.enabled=true" $values.kind) -}}
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
{{- if and (eq $values.kind "Deployment") (gt (int $values.replicaCount) 0) (ne (toString $values.serverCount) "auto") (ne (int $values.serverCount) (int $values.replicaCount)) -}}
{{- fail (printf "serverCount is %d but replicaCount is %d: agents would look for the wrong number of servers, leave serverCount=auto" (int $values.serverCount) (int $values.replicaCount)) -}}
{{- end -}}
{{- $surges := include "konnectivity-server.ownSurge" . -}}
{{- if and $surges (include "konnectivity-server.hostNetwork" .) -}}
{{- fail "updateStrategy lets the DaemonSet surge on the host's network, where the new pod of a node needs the ports of the old one and would never start: set updateStrategy.rollingUpdate.maxSurge=0, or hostNetwork=false" -}}
{{- end -}}
{{- if and $surges (not $values.leases.enabled) -}}
{{- fail (printf "updateStrategy lets the %s surge, but agents that have as many servers as they count look for no other, or only every 10 minutes (sync.forever), so that the new pod would not become ready in time: set updateStrategy.rollingUpdate.maxSurge=0, or leases.enabled=true" $values.kind) -}}
{{- end -}}
{{- if and (ne $values.logging.format "text") (not $values.ownFlags) -}}
{{- fail "logging.format=json is a flag that Go's server does not have: set ownFlags=true, or logging.format=text" -}}
{{- end -}}
{{- if and $values.frontend.additional (not $values.ownFlags) -}}
{{- fail "frontend.additional needs a flag that Go's server does not have: set ownFlags=true, or drop it" -}}
{{- end -}}
{{- $addresses := splitList "\n" (include "konnectivity-server.frontendAddresses" .) -}}
{{- if ne (len $addresses) (len (uniq $addresses)) -}}
{{- fail "frontend.additional repeats an address: give each socket its own socketName; there is one port, frontend.tcp.port" -}}
{{- end -}}
{{- range $addresses -}}
{{- $path := trimPrefix "unix:" . -}}
{{- if gt (len $path) 107 -}}
{{- fail (printf "%s has %d bytes, but the path of a Unix socket may have at most 107: shorten frontend.uds.hostPath or the socketName" $path (len $path)) -}}
{{- end -}}
{{- end -}}
{{- if and (not $values.ownFlags) (or $values.agentAuth.allowedNames $values.frontend.tcp.allowedNames) -}}
{{- fail "agentAuth.allowedNames and frontend.tcp.allowedNames are flags that Go's server does not have, so that everybody would come in: set ownFlags=true, or drop them" -}}
{{- end -}}
{{- if and $values.agentAuth.allowedNames (eq $values.agentAuth.mode "token") -}}
{{- fail "agentAuth.allowedNames are names of certificates, but agentAuth.mode is token: drop them, the account is named by agentAuth.serviceAccount" -}}
{{- end -}}
{{- if and (eq $values.kind "Sidecar") (eq $values.frontend.type "tcp") $values.egressSelector.render (not $values.egressSelector.apiserverClientSecret) -}}
{{- fail "kind Sidecar with frontend.type tcp: name the Secret of kube-apiserver's client certificate (ca.crt, tls.crt, tls.key) in egressSelector.apiserverClientSecret, or set frontend.type=uds, which needs none" -}}
{{- end -}}
{{- if and (eq $values.frontend.type "tcp") $values.egressSelector.render (not (include "konnectivity-server.frontendIsBeside" .)) (not $values.egressSelector.frontendHost) (not $values.egressSelector.apiserverClientSecret) -}}
{{- fail "kube-apiserver on a host cannot resolve the frontend's Service: set egressSelector.apiserverClientSecret (kube-apiserver is a pod here) or egressSelector.frontendHost" -}}
{{- end -}}
{{- if and (eq $values.kind "Sidecar") $values.prometheus.podMonitor.enabled (not $values.service.selector) -}}
{{- fail "prometheus.podMonitor.enabled with kind Sidecar: name the labels of kube-apiserver's pods in service.selector, or no pod would be scraped" -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled (has $values.kind (list "Sidecar" "StaticPodManifest")) -}}
{{- fail (printf "networkPolicy.enabled with kind %s: the chart makes policies for its own DaemonSet or Deployment alone, so drop it, and write one for that pod in extraObjects" $values.kind) -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled (include "konnectivity-server.hostNetwork" .) -}}
{{- fail "networkPolicy.enabled with hostNetwork: no policy holds on the host's network, so drop it and narrow the ports in the hosts' firewall, or set hostNetwork=false" -}}
{{- end -}}
{{- $scrape := $values.prometheus.podMonitor -}}
{{- if and $scrape.enabled $scrape.interval (gt (include "konnectivity-server.seconds" $scrape.scrapeTimeout | float64) (include "konnectivity-server.seconds" $scrape.interval | float64)) -}}
{{- fail (printf "prometheus.podMonitor.scrapeTimeout is %s, above interval (%s), which the Prometheus operator refuses: set scrapeTimeout to interval or less" $scrape.scrapeTimeout $scrape.interval) -}}
{{- end -}}
{{- range $value := list "commonLabels" "podLabels" -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "k8s-app" -}}
{{- if hasKey (default dict (get $values $value)) $label -}}
{{- fail (printf "%s.%s is a label by which selectors find the pods: drop it (nameOverride changes app.kubernetes.io/name)" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "konnectivity-server.checkIdentity" . -}}
{{- include "konnectivity-server.checkTls" . -}}
{{- include "konnectivity-server.checkHost" . -}}
{{- include "konnectivity-server.checkMounts" . -}}
{{- include "konnectivity-server.checkPorts" . -}}
{{- include "konnectivity-server.checkService" . -}}
{{- include "konnectivity-server.checkTimes" . -}}
{{- end -}}

{{/* The agents' claims that their token or certificate can prove. */}}
{{- define "konnectivity-server.checkIdentity" -}}
{{- $values := .Values -}}
{{- $auth := $values.agentAuth -}}
{{- $enforce := eq $auth.identityBinding "enforce" -}}
{{- if and (not $values.ownFlags) (or $enforce $auth.sourceAddress) -}}
{{- fail "agentAuth.identityBinding=enforce and agentAuth.sourceAddress are flags that Go's server does not have, so that agents could claim anything: set ownFlags=true, or identityBinding=log and sourceAddress=false" -}}
{{- end -}}
{{- if and $enforce (has "defaultRoute" $values.proxyStrategies) (not $auth.defaultRouteAllowedNames) -}}
{{- fail (printf "agentAuth.identityBinding is enforce and proxyStrategies has defaultRoute, but agentAuth.defaultRouteAllowedNames is empty, so that every agent with default-route=true would be refused: name %s, or drop defaultRoute" (ternary (printf "system:serviceaccount:%s:%s" $auth.namespace $auth.serviceAccount) "a name in the agents' certificate" (eq $auth.mode "token"))) -}}
{{- end -}}
{{- if and $auth.defaultRouteAllowedNames (not $enforce) -}}
{{- fail (printf "agentAuth.defaultRouteAllowedNames refuses nobody while agentAuth.identityBinding is %s: set identityBinding=enforce, or drop the names" $auth.identityBinding) -}}
{{- end -}}
{{- if and $enforce (has "destHost" $values.proxyStrategies) (eq $auth.mode "mtls") (not $auth.sourceAddress) -}}
{{- fail "agentAuth.identityBinding is enforce, proxyStrategies has destHost and agentAuth.mode is mtls: the certificate that agents share names no node, so that each of them would be refused, set agentAuth.mode=token, or agentAuth.sourceAddress=true where nothing translates addresses between agents and servers" -}}
{{- end -}}
{{- if and $auth.sourceAddress (include "konnectivity-server.hasService" .) (ne $values.service.type "ClusterIP") (ne $values.service.externalTrafficPolicy "Local") -}}
{{- fail (printf "agentAuth.sourceAddress=true behind service.type %s: nodes translate addresses, so that any agent could take another node's traffic, set service.externalTrafficPolicy=Local, or sourceAddress=false" $values.service.type) -}}
{{- end -}}
{{- end -}}

{{/* The number of sources that are set for one certificate. */}}
{{- define "konnectivity-server.countPairs" -}}
{{- add (ternary 1 0 (not (empty .existingSecret))) (ternary 1 0 (or (not (empty .hostPath.cert)) (not (empty .hostPath.key)))) (ternary 1 0 .certManager.enabled) -}}
{{- end -}}

{{- define "konnectivity-server.countAuthorities" -}}
{{- len (compact (list .existingSecret .configMap .hostPath)) -}}
{{- end -}}

{{- define "konnectivity-server.checkTls" -}}
{{- $values := .Values -}}
{{- $places := dict "agentListener" $values.agentListener -}}
{{- if contains "tcp" (include "konnectivity-server.frontendTypes" $) -}}{{- $_ := set $places "frontend.tcp" $values.frontend.tcp -}}{{- end -}}
{{- range $place, $listener := $places -}}
{{- if ne (include "konnectivity-server.countPairs" $listener.tls) "1" -}}
{{- fail (printf "%s.tls needs exactly one of existingSecret, hostPath (cert and key) and certManager.enabled" $place) -}}
{{- end -}}
{{- if ne (empty $listener.tls.hostPath.cert) (empty $listener.tls.hostPath.key) -}}
{{- fail (printf "%s.tls.hostPath needs both cert and key" $place) -}}
{{- end -}}
{{- if and $listener.tls.certManager.enabled (not $listener.tls.certManager.issuerRef.name) -}}
{{- fail (printf "%s.tls.certManager.issuerRef.name is empty: name the issuer" $place) -}}
{{- end -}}
{{- $cm := $listener.tls.certManager -}}
{{- if and $cm.enabled (ge (include "konnectivity-server.seconds" $cm.renewBefore | float64) (include "konnectivity-server.seconds" $cm.duration | float64)) -}}
{{- fail (printf "%s.tls.certManager.renewBefore is %s, not below duration (%s), which cert-manager refuses" $place $cm.renewBefore $cm.duration) -}}
{{- end -}}
{{- if gt (int (include "konnectivity-server.countAuthorities" $listener.clientCA)) 1 -}}
{{- fail (printf "%s.clientCA takes one of existingSecret, configMap and hostPath" $place) -}}
{{- end -}}
{{- end -}}
{{- $authorities := int (include "konnectivity-server.countAuthorities" $values.agentListener.clientCA) -}}
{{- if and (eq $values.agentAuth.mode "mtls") (eq $authorities 0) -}}
{{- fail "agentAuth.mode is mtls, but agentListener.clientCA names no authorities: anybody could be an agent, set its existingSecret, configMap or hostPath" -}}
{{- end -}}
{{- if and (eq $values.agentAuth.mode "token") (gt $authorities 0) -}}
{{- fail "agentListener.clientCA is set, but agentAuth.mode is token: agents show either a certificate or a token, set agentAuth.mode=mtls or drop clientCA" -}}
{{- end -}}
{{- if and (contains "tcp" (include "konnectivity-server.frontendTypes" $)) (eq (int (include "konnectivity-server.countAuthorities" $values.frontend.tcp.clientCA)) 0) -}}
{{- fail "frontend.tcp.clientCA names no authorities: whoever reaches the port could dial into the cluster, set its existingSecret, configMap or hostPath" -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-server.checkHost" -}}
{{- $values := .Values -}}
{{- if and (include "konnectivity-server.usesHostPaths" .) (not (include "konnectivity-server.runsAsRoot" .)) (not $values.hostPathsPrepared) -}}
{{- fail (printf "paths of the host are mounted and the server runs as user %s, who can neither read root's files nor write into a directory that kubelet makes: prepare them for that user and set hostPathsPrepared=true, or set podSecurityContext.runAsUser=0, podSecurityContext.runAsGroup=0 and podSecurityContext.runAsNonRoot=false" (include "konnectivity-server.identity" (list . "runAsUser"))) -}}
{{- end -}}
{{- if and (include "konnectivity-server.runsAsRoot" .) (dig "runAsNonRoot" (dig "runAsNonRoot" false (default dict $values.podSecurityContext)) (default dict $values.securityContext)) -}}
{{- fail "podSecurityContext.runAsUser is 0 and runAsNonRoot is true, which kubelet refuses: set podSecurityContext.runAsNonRoot=false" -}}
{{- end -}}
{{- if eq $values.kind "StaticPodManifest" -}}
{{- $tcp := $values.frontend.tcp -}}
{{- $secrets := list (include "konnectivity-server.agentSecret" .) $values.agentListener.clientCA.existingSecret $values.agentListener.clientCA.configMap $values.kubeconfig.existingSecret -}}
{{- if contains "tcp" (include "konnectivity-server.frontendTypes" $) -}}
{{- $secrets = concat $secrets (list (include "konnectivity-server.frontendSecret" .) $tcp.clientCA.existingSecret $tcp.clientCA.configMap) -}}
{{- end -}}
{{- range compact $secrets -}}
{{- fail (printf "kind StaticPodManifest refers to the Secret or ConfigMap %s, which a static pod cannot mount: use the hostPath beside it" .) -}}
{{- end -}}
{{- if $values.imagePullSecrets -}}
{{- fail "kind StaticPodManifest has imagePullSecrets, but a static pod may not refer to Secrets: drop them, and give kubelet the credentials of the registry" -}}
{{- end -}}
{{- range $name := list "extraVolumes" "extraEnv" "extraInitContainers" "extraContainers" "extraContainerSpec" "extraPodSpec" -}}
{{- with regexFind "(?m)^[ -]*(secret|configMap|serviceAccountToken|clusterTrustBundle|podCertificate|secretKeyRef|configMapKeyRef|envFrom|persistentVolumeClaim|resourceClaims):" (toYaml (get $values $name)) -}}
{{- fail (printf "kind StaticPodManifest has %s in %s, but a static pod may not refer to objects of the API: use files of the host (hostPath) and plain values" (trimAll " -:" .) $name) -}}
{{- end -}}
{{- end -}}
{{- if and (or (eq $values.agentAuth.mode "token") $values.leases.enabled) (not $values.kubeconfig.hostPath) -}}
{{- fail "kind StaticPodManifest has no service account, and tokens and leases need the Kubernetes API: set kubeconfig.hostPath" -}}
{{- end -}}
{{- end -}}
{{- if and $values.kubeconfig.hostPath $values.kubeconfig.existingSecret -}}
{{- fail "kubeconfig takes one of hostPath and existingSecret" -}}
{{- end -}}
{{- if and (eq $values.kind "Sidecar") (or (eq $values.agentAuth.mode "token") $values.leases.enabled) (not $values.kubeconfig.hostPath) (not $values.kubeconfig.existingSecret) -}}
{{- fail "kind Sidecar runs in kube-apiserver's pod, and tokens and leases need the Kubernetes API of the agents' cluster: set kubeconfig.existingSecret or kubeconfig.hostPath" -}}
{{- end -}}
{{- end -}}

{{/* Checks that no path is mounted twice in the servers' pod or in kube-apiserver's, because kubelet would not start such a pod. */}}
{{- define "konnectivity-server.checkMounts" -}}
{{- $values := .Values -}}
{{- $uds := eq $values.frontend.type "uds" -}}
{{- if and (contains "uds" (include "konnectivity-server.frontendTypes" $)) (has (clean $values.frontend.uds.hostPath) (include "konnectivity-server.hostFolders" . | fromYamlArray)) -}}
{{- fail (printf "frontend.uds.hostPath is %s, which is mounted already for the files of agentListener.tls.hostPath or agentListener.clientCA.hostPath: give the socket a directory of its own" $values.frontend.uds.hostPath) -}}
{{- end -}}
{{- $mounted := include "konnectivity-server.hostFolders" . | fromYamlArray -}}
{{- if contains "uds" (include "konnectivity-server.frontendTypes" $) -}}{{- $mounted = append $mounted (clean $values.frontend.uds.hostPath) -}}{{- end -}}
{{- range $mounted -}}
{{- if regexMatch "^/etc/kubernetes(/pki(/etcd)?)?$" . -}}
{{- fail (printf "%s would be mounted as a whole, with the keys of the cluster: give the certificates and the socket directories of their own" .) -}}
{{- end -}}
{{- end -}}
{{- range $values.extraVolumes -}}
{{- if regexMatch "^(konnectivity|socket|kubeconfig|host-[0-9]+)$" .name -}}
{{- fail (printf "extraVolumes has a volume %s, a name of the chart's own: give it another name" .name) -}}
{{- end -}}
{{- end -}}
{{- $name := "egressSelector.apiserverCertificateDirectory" -}}
{{- $folder := $values.egressSelector.apiserverCertificateDirectory -}}
{{- if $uds -}}
{{- $name = ternary "frontend.uds.hostPath" "egressSelector.apiserverSocketDirectory" (empty $values.egressSelector.apiserverSocketDirectory) -}}
{{- $folder = include "konnectivity-server.apiserverSocketDirectory" . -}}
{{- end -}}
{{- if and $values.egressSelector.render (eq (clean $folder) "/etc/kubernetes/konnectivity") -}}
{{- fail (printf "%s is %s, where kube-apiserver mounts its EgressSelectorConfiguration, and no path is mounted twice: name another directory" $name $folder) -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-server.checkPorts" -}}
{{- $values := .Values -}}
{{- $taken := dict -}}
{{- $ports := list (list "agentListener.port" $values.agentListener.port) (list "ports.health" $values.ports.health) (list "ports.admin" $values.ports.admin) -}}
{{- if contains "tcp" (include "konnectivity-server.frontendTypes" $) -}}{{- $ports = append $ports (list "frontend.tcp.port" $values.frontend.tcp.port) -}}{{- end -}}
{{- range $ports -}}
{{- $port := toString (int (index . 1)) -}}
{{- if hasKey $taken $port -}}
{{- fail (printf "%s and %s are both %s: give them different ports" (get $taken $port) (index . 0) $port) -}}
{{- end -}}
{{- $_ := set $taken $port (index . 0) -}}
{{- end -}}
{{- $loopback := include "konnectivity-server.healthOnLoopback" . -}}
{{- if and $loopback (not (include "konnectivity-server.hostNetwork" .)) -}}
{{- fail (printf "bindAddresses.health is %s, where kubelet cannot probe a pod without the host's network: leave it empty" $values.bindAddresses.health) -}}
{{- end -}}
{{- if and $loopback $values.prometheus.podMonitor.enabled -}}
{{- fail (printf "bindAddresses.health is %s, where Prometheus cannot scrape: leave it empty, or set prometheus.podMonitor.enabled=false" $values.bindAddresses.health) -}}
{{- end -}}
{{- if and $loopback $values.prometheus.rules.enabled -}}
{{- fail (printf "bindAddresses.health is %s, where Prometheus cannot scrape, so that the alert on missing targets would fire for ever: leave it empty, or set prometheus.rules.enabled=false" $values.bindAddresses.health) -}}
{{- end -}}
{{- range $flag, $value := dict "health-port" "ports.health" "admin-port" "ports.admin" "health-bind-address" "bindAddresses.health" "agent-port" "agentListener.port" "server-port" "frontend.tcp.port" "uds-name" "frontend.uds" "frontend" "frontend.additional" "server-count" "serverCount" "graceful-shutdown-timeout" "gracefulShutdownTimeout" -}}
{{- if hasKey (default dict $values.extraArgs) $flag -}}
{{- fail (printf "extraArgs.%s would disagree with the pod's ports, probes, volumes or times: set %s instead" $flag $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-server.checkService" -}}
{{- $values := .Values -}}
{{- $service := $values.service -}}
{{- $name := include "konnectivity-server.fullname" . -}}
{{- if and (include "konnectivity-server.hasService" .) (regexMatch "^[0-9]" $name) (semverCompare "<1.36-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "a Service would be called %s, but before Kubernetes 1.36 names of Services begin with a letter: set fullnameOverride" $name) -}}
{{- end -}}
{{- if and $service.nodePort (eq $service.type "ClusterIP") -}}
{{- fail "service.nodePort needs service.type NodePort or LoadBalancer" -}}
{{- end -}}
{{- if and (ne $service.type "LoadBalancer") (or $service.loadBalancerClass $service.loadBalancerSourceRanges) -}}
{{- fail "service.loadBalancerClass and service.loadBalancerSourceRanges need service.type LoadBalancer" -}}
{{- end -}}
{{- if and (eq $service.type "ClusterIP") $service.externalTrafficPolicy -}}
{{- fail "service.externalTrafficPolicy needs service.type NodePort or LoadBalancer" -}}
{{- end -}}
{{- if and (eq $service.type "NodePort") $service.nodePort $values.agentListener.externalPort (ne (int $service.nodePort) (int $values.agentListener.externalPort)) -}}
{{- fail (printf "agentListener.externalPort is %d, but the Service's nodePort is %d: agents would dial a port that nobody listens on, leave externalPort empty" (int $values.agentListener.externalPort) (int $service.nodePort)) -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-server.checkTimes" -}}
{{- if and .Values.ownFlags (not .Values.gracefulShutdownTimeout) -}}
{{- fail "gracefulShutdownTimeout is empty, so that no connection could finish: set it, or ownFlags=false for Go's servers before v0.35.0, which do not have the flag" -}}
{{- end -}}
{{- $graceful := include "konnectivity-server.seconds" .Values.gracefulShutdownTimeout | float64 -}}
{{- $pause := include "konnectivity-server.preStopSeconds" . | float64 -}}
{{- if and (gt $pause 0.0) (semverCompare "<1.30-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "preStopSleepSeconds is %v, but kubelet cannot sleep before Kubernetes 1.30: set preStopSleepSeconds=0 and extraContainerSpec.lifecycle to {preStop: {exec: {command: [/konnectivity-sleep, \"%v\"]}}}" $pause $pause) -}}
{{- end -}}
{{- if and (gt $pause 0.0) (hasKey (default dict .Values.extraContainerSpec) "lifecycle") -}}
{{- fail "extraContainerSpec.lifecycle would be a second lifecycle beside that of preStopSleepSeconds: set preStopSleepSeconds=0, and count your hook into terminationGracePeriodSeconds" -}}
{{- end -}}
{{- if ge (addf $graceful $pause) (float64 .Values.terminationGracePeriodSeconds) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, not above preStopSleepSeconds (%v) and gracefulShutdownTimeout (%s) together: kubelet would kill the server before its connections have finished" (int .Values.terminationGracePeriodSeconds) $pause .Values.gracefulShutdownTimeout) -}}
{{- end -}}
{{- end -}}
