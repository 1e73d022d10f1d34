{{/* Names and labels. */}}
{{- define "konnectivity-server.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Names of Services have no dots. Of a long release the name is not cut, because a parent chart's agents would have the same one. */}}
{{- define "konnectivity-server.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $long := printf "%s-%s" .Release.Name $name -}}
{{- $full := $long -}}
{{- if contains $name .Release.Name -}}
{{- $full = .Release.Name -}}
{{- else if gt (len $long) 63 -}}
{{- $full = printf "%s-server" .Release.Name -}}
{{- end -}}
{{- default $full .Values.fullnameOverride | replace "." "-" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "konnectivity-server.selectorLabels" -}}
app.kubernetes.io/name: {{ include "konnectivity-server.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "konnectivity-server.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Prefix of the names of roles and bindings, some of which are outside of the release's namespace. Other names contain no colon. */}}
{{- define "konnectivity-server.role" -}}
{{- printf "konnectivity:%s:%s" (include "konnectivity-server.namespace" .) (include "konnectivity-server.fullname" .) -}}
{{- end -}}

{{/* Prefix of the name of an object in a namespace that the values name, which releases in other namespaces must not have. No namespace
contains a dot. Argument: the context, and that namespace. */}}
{{- define "konnectivity-server.prefix" -}}
{{- $own := include "konnectivity-server.namespace" (index . 0) -}}
{{- if ne (index . 1) $own -}}{{- $own -}}.{{- end -}}
{{- end -}}

{{/* The chart's labels, which commonLabels may replace except for those of selectors. */}}
{{- define "konnectivity-server.labels" -}}
{{- $own := dict "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/component" "server" "app.kubernetes.io/part-of" "konnectivity" "app.kubernetes.io/managed-by" .Release.Service -}}
{{- mergeOverwrite $own (omit (default dict .Values.commonLabels) "k8s-app") (include "konnectivity-server.selectorLabels" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* Labels of pods. They do not contain the chart's version, so that an upgrade without other changes restarts no pod. */}}
{{- define "konnectivity-server.podLabels" -}}
{{- $own := dict "app.kubernetes.io/component" "server" "app.kubernetes.io/part-of" "konnectivity" -}}
{{- mergeOverwrite $own (default dict .Values.commonLabels) (default dict .Values.podLabels) (dict "k8s-app" "konnectivity-server") (include "konnectivity-server.selectorLabels" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* The project's folder docs: a URL in a packaged chart, whose `home` hack/release sets. */}}
{{- define "konnectivity-server.docs" -}}
{{- with .Chart.Home -}}{{- . -}}/{{- end -}}docs
{{- end -}}

{{- define "konnectivity-server.runbooks" -}}
{{- default (printf "%s/alerts.md" (include "konnectivity-server.docs" .)) .Values.prometheus.rules.runbookBaseURL -}}
{{- end -}}

{{- define "konnectivity-server.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "konnectivity-server.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-server.registry" -}}
{{- default (dig "imageRegistry" "" (default dict .Values.global)) .Values.image.registry | trimSuffix "/" -}}
{{- end -}}

{{/* Secrets of the chart and of its parent, as objects. */}}
{{- define "konnectivity-server.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (default list .Values.imagePullSecrets) (dig "imagePullSecrets" list (default dict .Values.global) | default list) -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- with $secrets -}}{{- uniq . | toYaml -}}{{- end -}}
{{- end -}}

{{- define "konnectivity-server.image" -}}
{{- $image := .Values.image -}}
{{- $name := printf "%s/%s" (include "konnectivity-server.registry" .) $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default (printf "v%s" .Chart.AppVersion) $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Whether the health port listens on loopback only. */}}
{{- define "konnectivity-server.healthOnLoopback" -}}
{{- $host := .Values.bindAddresses.health -}}
{{- if or (hasPrefix "127." $host) (eq $host "localhost") (eq $host "::1") -}}true{{- end -}}
{{- end -}}

{{/* Whether there is a pod of helm test. It needs a program that Go's image does not have. */}}
{{- define "konnectivity-server.hasTest" -}}
{{- if and .Values.tests.enabled .Values.ownFlags (has .Values.kind (list "DaemonSet" "Deployment")) (not (include "konnectivity-server.healthOnLoopback" .)) -}}true{{- end -}}
{{- end -}}

{{/* Whether pods use the host's network. */}}
{{- define "konnectivity-server.hostNetwork" -}}
{{- if and .Values.hostNetwork (has .Values.kind (list "DaemonSet" "StaticPodManifest")) -}}true{{- end -}}
{{- end -}}

{{/* Secrets from the user or from cert-manager; empty if files of the host are used. */}}
{{- define "konnectivity-server.agentSecret" -}}
{{- if .Values.agentListener.tls.certManager.enabled -}}
{{- printf "%s-agents" (include "konnectivity-server.fullname" .) -}}
{{- else -}}
{{- .Values.agentListener.tls.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-server.frontendSecret" -}}
{{- if .Values.frontend.tcp.tls.certManager.enabled -}}
{{- printf "%s-frontend" (include "konnectivity-server.fullname" .) -}}
{{- else -}}
{{- .Values.frontend.tcp.tls.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-server.socket" -}}
{{- printf "%s/%s" (trimSuffix "/" .Values.frontend.uds.hostPath) .Values.frontend.uds.socketName -}}
{{- end -}}

{{/* The types of all frontends, separated by blanks. */}}
{{- define "konnectivity-server.frontendTypes" -}}
{{- $types := list .Values.frontend.type -}}
{{- range .Values.frontend.additional -}}{{- $types = append $types .type -}}{{- end -}}
{{- join " " $types -}}
{{- end -}}

{{/* Whether there is a Service for agents: always, except for a Sidecar without a selector for pods. */}}
{{- define "konnectivity-server.hasService" -}}
{{- if or (ne .Values.kind "Sidecar") .Values.service.selector -}}true{{- end -}}
{{- end -}}

{{- define "konnectivity-server.servicePort" -}}
{{- default .Values.agentListener.port .Values.service.port -}}
{{- end -}}

{{/* Whether a kubeconfig means that agents are in another cluster. For a DaemonSet or static pod, a file of the host may be for the servers' own cluster. */}}
{{- define "konnectivity-server.agentsAreElsewhere" -}}
{{- $kubeconfig := .Values.kubeconfig -}}
{{- if or $kubeconfig.existingSecret (and $kubeconfig.hostPath (has .Values.kind (list "Deployment" "Sidecar"))) -}}true{{- end -}}
{{- end -}}

{{/* The address for agents, if the values determine it. In another cluster the Service's name does not resolve. */}}
{{- define "konnectivity-server.externalHost" -}}
{{- if .Values.agentListener.externalHost -}}
{{- .Values.agentListener.externalHost -}}
{{- else if and (include "konnectivity-server.hasService" .) (eq .Values.service.type "ClusterIP") (not (include "konnectivity-server.agentsAreElsewhere" .)) -}}
{{- printf "%s.%s.svc" (include "konnectivity-server.fullname" .) (include "konnectivity-server.namespace" .) -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-server.externalPort" -}}
{{- if .Values.agentListener.externalPort -}}
{{- .Values.agentListener.externalPort -}}
{{- else if and (eq .Values.service.type "NodePort") .Values.service.nodePort -}}
{{- .Values.service.nodePort -}}
{{- else -}}
{{- include "konnectivity-server.servicePort" . -}}
{{- end -}}
{{- end -}}

{{/* Whether a frontend on TCP is in kube-apiserver's own pod or on its host, where Service names do not resolve: then it has no Service. On the
host's network this is so, unless the values say that kube-apiserver is a pod. */}}
{{- define "konnectivity-server.frontendIsBeside" -}}
{{- if or (eq .Values.kind "Sidecar") (and (include "konnectivity-server.hostNetwork" .) (not .Values.egressSelector.apiserverClientSecret)) -}}true{{- end -}}
{{- end -}}

{{/* The frontend's Service, within the 63 characters of its kind. */}}
{{- define "konnectivity-server.frontendService" -}}
{{- printf "%s-frontend" (include "konnectivity-server.fullname" . | trunc 54 | trimSuffix "-") -}}
{{- end -}}

{{/* The address at which kube-apiserver dials a frontend on TCP. */}}
{{- define "konnectivity-server.frontendHost" -}}
{{- $service := printf "%s.%s.svc" (include "konnectivity-server.frontendService" .) (include "konnectivity-server.namespace" .) -}}
{{- default (ternary "localhost" $service (not (empty (include "konnectivity-server.frontendIsBeside" .)))) .Values.egressSelector.frontendHost -}}
{{- end -}}

{{/* The number of servers; empty if the values do not determine it. */}}
{{- define "konnectivity-server.serverCount" -}}
{{- if ne (toString .Values.serverCount) "auto" -}}
{{- int .Values.serverCount -}}
{{- else if eq .Values.kind "Deployment" -}}
{{- max 1 (int .Values.replicaCount) -}}
{{- end -}}
{{- end -}}

{{/* Whether agents look for more servers than the announced count. */}}
{{- define "konnectivity-server.agentsLookForMore" -}}
{{- if or .Values.leases.enabled .Values.syncForever -}}true{{- end -}}
{{- end -}}

{{/* Whether the user's strategy surges: a new pod starts before an old one stops. Kubernetes' default surge is a quarter for a Deployment,
and none for a DaemonSet. */}}
{{- define "konnectivity-server.ownSurge" -}}
{{- $strategy := .Values.updateStrategy -}}
{{- if and $strategy (has .Values.kind (list "DaemonSet" "Deployment")) (eq (dig "type" "RollingUpdate" $strategy) "RollingUpdate") -}}
{{- if not (has (dig "maxSurge" (ternary "25%" "0" (eq .Values.kind "Deployment")) (default dict $strategy.rollingUpdate) | toString) (list "0" "0%")) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* Tolerations. A pod that tolerates everything stays on a dead node until it is deleted, so a Deployment's pods leave such a node.
The first toleration that matches a taint decides. */}}
{{- define "konnectivity-server.tolerations" -}}
{{- $tolerations := default list .Values.tolerations -}}
{{- $keys := list -}}
{{- range $tolerations -}}{{- $keys = append $keys (dig "key" "" .) -}}{{- end -}}
{{- if and (eq .Values.kind "Deployment") (has "" $keys) -}}
{{- range $key := list "node.kubernetes.io/unreachable" "node.kubernetes.io/not-ready" -}}
{{- if not (has $key $keys) -}}
{{- $tolerations = prepend $tolerations (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 300) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $tolerations -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* Converts a duration of Go or Prometheus to seconds. */}}
{{- define "konnectivity-server.seconds" -}}
{{- $unit := dict "y" 31536000.0 "w" 604800.0 "d" 86400.0 "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµ]+" . -1 -}}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) (get $unit (regexFind "[a-zµ]+" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "konnectivity-server.preStopSeconds" -}}
{{- if ne (toString .Values.preStopSleepSeconds) "auto" -}}
{{- int .Values.preStopSleepSeconds -}}
{{- else if and (eq .Values.kind "Deployment") (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) -}}
5
{{- else -}}
0
{{- end -}}
{{- end -}}

{{/* The user or group of the server. Arguments: the context, and runAsUser or runAsGroup. */}}
{{- define "konnectivity-server.identity" -}}
{{- $values := (index . 0).Values -}}
{{- dig (index . 1) (dig (index . 1) 65532 (default dict $values.podSecurityContext)) (default dict $values.securityContext) | int64 -}}
{{- end -}}

{{- define "konnectivity-server.runsAsRoot" -}}
{{- if eq (include "konnectivity-server.identity" (list . "runAsUser")) "0" -}}true{{- end -}}
{{- end -}}

{{/* Folders of the host with files to read, as a YAML list without duplicates. */}}
{{- define "konnectivity-server.hostFolders" -}}
{{- $values := .Values -}}
{{- $files := list $values.agentListener.tls.hostPath.cert $values.agentListener.tls.hostPath.key $values.agentListener.clientCA.hostPath -}}
{{- if contains "tcp" (include "konnectivity-server.frontendTypes" $) -}}
{{- $files = concat $files (list $values.frontend.tcp.tls.hostPath.cert $values.frontend.tcp.tls.hostPath.key $values.frontend.tcp.clientCA.hostPath) -}}
{{- end -}}
{{- $folders := list -}}
{{- range compact $files -}}
{{- $folders = append $folders (dir .) -}}
{{- end -}}
{{- $folders | uniq | sortAlpha | toYaml -}}
{{- end -}}

{{/* Whether a part of the host's file system is mounted. */}}
{{- define "konnectivity-server.usesHostPaths" -}}
{{- $folders := include "konnectivity-server.hostFolders" . | fromYamlArray -}}
{{- $socket := and (contains "uds" (include "konnectivity-server.frontendTypes" $)) (ne .Values.kind "Sidecar") -}}
{{- if or $folders .Values.kubeconfig.hostPath $socket -}}true{{- end -}}
{{- end -}}
