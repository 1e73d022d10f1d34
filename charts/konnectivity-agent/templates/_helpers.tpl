{{/* Names and labels. */}}
{{- define "konnectivity-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Of a long release the name is not cut, because a parent chart's servers would have the same one. */}}
{{- define "konnectivity-agent.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $long := printf "%s-%s" .Release.Name $name -}}
{{- $full := $long -}}
{{- if contains $name .Release.Name -}}
{{- $full = .Release.Name -}}
{{- else if gt (len $long) 63 -}}
{{- $full = printf "%s-agent" .Release.Name -}}
{{- end -}}
{{- default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "konnectivity-agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "konnectivity-agent.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "konnectivity-agent.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Prefix of the names of roles and bindings, some of which are outside of the release's namespace. Other names contain no colon. */}}
{{- define "konnectivity-agent.role" -}}
{{- printf "konnectivity:%s:%s" (include "konnectivity-agent.namespace" .) (include "konnectivity-agent.fullname" .) -}}
{{- end -}}

{{/* Prefix of the name of an object in a namespace that the values name, which releases in other namespaces must not have. No namespace
contains a dot. Argument: the context, and that namespace. */}}
{{- define "konnectivity-agent.prefix" -}}
{{- $own := include "konnectivity-agent.namespace" (index . 0) -}}
{{- if ne (index . 1) $own -}}{{- $own -}}.{{- end -}}
{{- end -}}

{{/* The chart's labels, which commonLabels may replace except for those of selectors. */}}
{{- define "konnectivity-agent.labels" -}}
{{- $own := dict "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/component" "agent" "app.kubernetes.io/part-of" "konnectivity" "app.kubernetes.io/managed-by" .Release.Service -}}
{{- mergeOverwrite $own (omit (default dict .Values.commonLabels) "k8s-app") (include "konnectivity-agent.selectorLabels" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* Labels of pods. They do not contain the chart's version, so that an upgrade without other changes restarts no pod. */}}
{{- define "konnectivity-agent.podLabels" -}}
{{- $own := dict "app.kubernetes.io/component" "agent" "app.kubernetes.io/part-of" "konnectivity" -}}
{{- mergeOverwrite $own (default dict .Values.commonLabels) (default dict .Values.podLabels) (dict "k8s-app" "konnectivity-agent") (include "konnectivity-agent.selectorLabels" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* The project's folder docs: a URL in a packaged chart, whose `home` hack/release sets. */}}
{{- define "konnectivity-agent.docs" -}}
{{- with .Chart.Home -}}{{- . -}}/{{- end -}}docs
{{- end -}}

{{- define "konnectivity-agent.runbooks" -}}
{{- default (printf "%s/alerts.md" (include "konnectivity-agent.docs" .)) .Values.prometheus.rules.runbookBaseURL -}}
{{- end -}}

{{- define "konnectivity-agent.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "konnectivity-agent.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-agent.registry" -}}
{{- default (dig "imageRegistry" "" (default dict .Values.global)) .Values.image.registry | trimSuffix "/" -}}
{{- end -}}

{{/* Secrets of the chart and of its parent, as objects. */}}
{{- define "konnectivity-agent.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (default list .Values.imagePullSecrets) (dig "imagePullSecrets" list (default dict .Values.global) | default list) -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- with $secrets -}}{{- uniq . | toYaml -}}{{- end -}}
{{- end -}}

{{- define "konnectivity-agent.image" -}}
{{- $image := .Values.image -}}
{{- $name := printf "%s/%s" (include "konnectivity-agent.registry" .) $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default (printf "v%s" .Chart.AppVersion) $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the client certificate, from the user or from cert-manager. */}}
{{- define "konnectivity-agent.mtlsSecret" -}}
{{- if .Values.auth.mtls.certManager.enabled -}}
{{- printf "%s-client" (include "konnectivity-agent.fullname" .) -}}
{{- else -}}
{{- .Values.auth.mtls.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* Whether the health port listens on loopback only. */}}
{{- define "konnectivity-agent.healthOnLoopback" -}}
{{- $host := .Values.bindAddresses.health -}}
{{- if or (hasPrefix "127." $host) (eq $host "localhost") (eq $host "::1") -}}true{{- end -}}
{{- end -}}

{{/* Whether there is a pod of helm test. It needs a program that Go's image does not have. */}}
{{- define "konnectivity-agent.hasTest" -}}
{{- if and .Values.tests.enabled .Values.ownFlags (not (include "konnectivity-agent.healthOnLoopback" .)) -}}true{{- end -}}
{{- end -}}

{{/* The variables that the chart defines and the identifiers use, with their pod fields. */}}
{{- define "konnectivity-agent.identifierVariables" -}}
{{- $known := dict "HOST_IP" "status.hostIP" "NODE_IP" "status.hostIP" "NODE_NAME" "spec.nodeName" "POD_IP" "status.podIP" -}}
{{- $used := dict -}}
{{- range $name, $field := $known -}}
{{- if contains (printf "$(%s)" $name) (toString $.Values.agentIdentifiers) -}}
{{- $_ := set $used $name $field -}}
{{- end -}}
{{- end -}}
{{- $used | toYaml -}}
{{- end -}}

{{/* Whether the user's strategy surges: a new pod starts before an old one stops. Kubernetes' default surge is a quarter for a Deployment,
and none for a DaemonSet. */}}
{{- define "konnectivity-agent.ownSurge" -}}
{{- $strategy := .Values.updateStrategy -}}
{{- if and $strategy (eq (dig "type" "RollingUpdate" $strategy) "RollingUpdate") -}}
{{- if not (has (dig "maxSurge" (ternary "25%" "0" (eq .Values.kind "Deployment")) (default dict $strategy.rollingUpdate) | toString) (list "0" "0%")) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-agent.runsAsRoot" -}}
{{- $user := dig "runAsUser" (dig "runAsUser" 65532 (default dict .Values.podSecurityContext)) (default dict .Values.securityContext) -}}
{{- if eq (int $user) 0 -}}true{{- end -}}
{{- end -}}

{{/* Tolerations. A pod that tolerates everything stays on a dead node until it is deleted, so a Deployment's pods leave such a node.
The first toleration that matches a taint decides. */}}
{{- define "konnectivity-agent.tolerations" -}}
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
{{- define "konnectivity-agent.seconds" -}}
{{- $unit := dict "y" 31536000.0 "w" 604800.0 "d" 86400.0 "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµ]+" . -1 -}}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) (get $unit (regexFind "[a-zµ]+" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* The agents' id. A token proves the name of its pod. A certificate that agents share proves none, so with identity binding servers accept
a UUID, which other agents cannot guess. */}}
{{- define "konnectivity-agent.agentID" -}}
{{- $kind := .Values.agentID -}}
{{- if eq $kind "auto" -}}{{- $kind = ternary "pod-name" "pod-uid" (eq .Values.auth.mode "token") -}}{{- end -}}
{{- ternary "$(POD_NAME)" "$(POD_UID)" (eq $kind "pod-name") -}}
{{- end -}}

{{/* Whether the servers' user may review tokens: not needed if agents authenticate by certificate. */}}
{{- define "konnectivity-agent.delegatesReviews" -}}
{{- if and .Values.rbac.create .Values.rbac.serverAuthDelegator (eq .Values.auth.mode "token") -}}true{{- end -}}
{{- end -}}
