{{/* Names and labels. */}}
{{- define "konnectivity-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "konnectivity-agent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "konnectivity-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "konnectivity-agent.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "konnectivity-agent.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: konnectivity
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of pods: nothing that changes with the chart's version, so that an upgrade that changes nothing restarts nothing. */}}
{{- define "konnectivity-agent.podLabels" -}}
{{ include "konnectivity-agent.selectorLabels" . }}
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: konnectivity
k8s-app: konnectivity-agent
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "konnectivity-agent.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "konnectivity-agent.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-agent.image" -}}
{{- $image := .Values.image -}}
{{- $name := printf "%s/%s" (trimSuffix "/" $image.registry) $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default (printf "v%s" .Chart.AppVersion) $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the client certificate, by hand or by cert-manager. */}}
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

{{/* Variables that the chart defines, of those that the identifiers use: name to field. */}}
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

{{/* Whether a strategy of the user's own lets a new pod come before an old one goes. Kubernetes' default is a quarter of a Deployment, and
nothing of a DaemonSet. */}}
{{- define "konnectivity-agent.ownSurge" -}}
{{- $strategy := .Values.updateStrategy -}}
{{- if and $strategy (eq (dig "type" "RollingUpdate" $strategy) "RollingUpdate") -}}
{{- if not (has (dig "maxSurge" (ternary "25%" "0" (eq .Values.kind "Deployment")) (default dict $strategy.rollingUpdate) | toString) (list "0" "0%")) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "konnectivity-agent.runsAsRoot" -}}
{{- $user := dig "runAsUser" (dig "runAsUser" 65532 .Values.podSecurityContext) .Values.securityContext -}}
{{- if eq (int $user) 0 -}}true{{- end -}}
{{- end -}}

{{/* A Deployment's pods are wanted, not wanted on this node: who tolerates everything stays on one that has died until somebody deletes it.
The first toleration that matches a taint decides. */}}
{{- define "konnectivity-agent.tolerations" -}}
{{- $tolerations := .Values.tolerations -}}
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

{{/* A Go duration in seconds. */}}
{{- define "konnectivity-agent.seconds" -}}
{{- $unit := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµ]+" . -1 -}}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) (get $unit (regexFind "[a-zµ]+" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* What agents call themselves. A token vouches for its pod's name; a certificate that agents share for none, and then servers that bind
identities take a UUID, which nobody else can guess. */}}
{{- define "konnectivity-agent.agentID" -}}
{{- $kind := .Values.agentID -}}
{{- if eq $kind "auto" -}}{{- $kind = ternary "pod-name" "pod-uid" (eq .Values.auth.mode "token") -}}{{- end -}}
{{- ternary "$(POD_NAME)" "$(POD_UID)" (eq $kind "pod-name") -}}
{{- end -}}

{{/* Whether the servers' user gets the right to review tokens: servers that know agents by certificate need none. */}}
{{- define "konnectivity-agent.delegatesReviews" -}}
{{- if and .Values.rbac.create .Values.rbac.serverAuthDelegator (eq .Values.auth.mode "token") -}}true{{- end -}}
{{- end -}}
