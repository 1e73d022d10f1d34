{{/* The value of a flag as text: lists joined by commas, numbers as written. */}}
{{- define "konnectivity-server.flagValue" -}}
{{- if kindIs "slice" . -}}{{- join "," . -}}
{{- else if kindIs "string" . -}}{{- . -}}
{{- else -}}{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/* All flags by name, without extraArgs. */}}
{{- define "konnectivity-server.flags" -}}
{{- $values := .Values -}}
{{- include "konnectivity-server.frontendFlags" . }}
{{ include "konnectivity-server.agentFlags" . }}
server-id: $(POD_NAME)
{{- with include "konnectivity-server.serverCount" . }}
server-count: {{ . }}
{{- end }}
proxy-strategies: {{ join "," $values.proxyStrategies | quote }}
{{- if $values.kubeconfig.hostPath }}
kubeconfig: {{ $values.kubeconfig.hostPath | quote }}
{{- else if $values.kubeconfig.existingSecret }}
kubeconfig: /var/run/secrets/konnectivity/kubeconfig
{{- end }}
{{- if $values.leases.enabled }}
enable-lease-controller: true
lease-namespace: {{ $values.leases.namespace | quote }}
lease-label: {{ $values.leases.label | quote }}
{{- end }}
{{- range $flag, $value := dict "keepalive-time" $values.keepaliveTime "frontend-keepalive-time" $values.frontendKeepaliveTime "backend-dial-timeout" $values.backendDialTimeout "tls-min-version" $values.tlsMinVersion "xfr-channel-size" $values.xfrChannelSize "cipher-suites" (join "," $values.cipherSuites) "health-bind-address" $values.bindAddresses.health }}
{{- if $value }}
{{ $flag }}: {{ $value | toJson }}
{{- end }}
{{- end }}
{{- with $values.gracefulShutdownTimeout }}
graceful-shutdown-timeout: {{ . | quote }}
{{- end }}
health-port: {{ $values.ports.health }}
admin-bind-address: {{ $values.bindAddresses.admin | quote }}
admin-port: {{ $values.ports.admin }}
v: {{ $values.logging.verbosity }}
{{- if $values.ownFlags }}
require-agent-auth: true
{{- with $values.memoryLimit }}
memory-limit: {{ . | quote }}
{{- end }}
readiness-policy: {{ $values.readinessPolicy }}
{{- with $values.keepaliveTimeout }}
keepalive-timeout: {{ . | quote }}
{{- end }}
agent-identity-binding: {{ $values.agentAuth.identityBinding | quote }}
{{- with $values.agentAuth.defaultRouteAllowedNames }}
default-route-allowed-names: {{ join "," . | quote }}
{{- end }}
{{- if $values.agentAuth.sourceAddress }}
agent-identity-source-address: true
{{- end }}
{{- with $values.agentAuth.allowedNames }}
agent-allowed-names: {{ join "," . | quote }}
{{- end }}
{{- if and (contains "tcp" (include "konnectivity-server.frontendTypes" $)) $values.frontend.tcp.allowedNames }}
frontend-allowed-names: {{ join "," $values.frontend.tcp.allowedNames | quote }}
{{- end }}
{{- if ne $values.logging.format "text" }}
log-format: {{ $values.logging.format }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The address that a frontend on TCP binds; empty: all interfaces. */}}
{{- define "konnectivity-server.frontendBindAddress" -}}
{{- if and (include "konnectivity-server.frontendIsBeside" .) (not .Values.egressSelector.frontendHost) -}}127.0.0.1{{- end -}}
{{- end -}}

{{/* The transport and address of each frontend, one in each line. */}}
{{- define "konnectivity-server.frontendAddresses" -}}
{{- $values := .Values -}}
{{- $host := include "konnectivity-server.frontendBindAddress" . -}}
{{- $addresses := list -}}
{{- range prepend (default list $values.frontend.additional) (dict "type" $values.frontend.type "socketName" $values.frontend.uds.socketName) -}}
{{- if eq .type "uds" -}}
{{- $addresses = append $addresses (printf "unix:%s/%s" (trimSuffix "/" $values.frontend.uds.hostPath) .socketName) -}}
{{- else -}}
{{- $addresses = append $addresses (printf "tcp:%s%d" (ternary (printf "%s:" $host) "" (ne $host "")) (int $values.frontend.tcp.port)) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $addresses -}}
{{- end -}}

{{- define "konnectivity-server.frontendFlags" -}}
{{- $tcp := .Values.frontend.tcp -}}
{{- if .Values.frontend.additional -}}
{{- $addresses := splitList "\n" (include "konnectivity-server.frontendAddresses" .) -}}
{{- /* Sorted, so that a frontend that becomes the additional one restarts no server. */ -}}
{{- $entries := list (printf "%s+%s" .Values.mode (first $addresses)) -}}
{{- range $index, $frontend := .Values.frontend.additional -}}
{{- $entries = append $entries (printf "%s+%s" $frontend.mode (index $addresses (add1 $index))) -}}
{{- end -}}
frontend: {{ sortAlpha $entries | toJson }}
{{- else -}}
mode: {{ .Values.mode }}
{{- if eq .Values.frontend.type "uds" }}
uds-name: {{ include "konnectivity-server.socket" . | quote }}
server-port: 0
{{- else }}
server-port: {{ $tcp.port }}
{{- with include "konnectivity-server.frontendBindAddress" . }}
server-bind-address: {{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- if contains "tcp" (include "konnectivity-server.frontendTypes" .) }}
server-cert: {{ default "/var/run/secrets/konnectivity/frontend.crt" $tcp.tls.hostPath.cert | quote }}
server-key: {{ default "/var/run/secrets/konnectivity/frontend.key" $tcp.tls.hostPath.key | quote }}
server-ca-cert: {{ default "/var/run/secrets/konnectivity/frontend-ca.crt" $tcp.clientCA.hostPath | quote }}
{{- end }}
{{- end -}}

{{- define "konnectivity-server.agentFlags" -}}
{{- $listener := .Values.agentListener -}}
agent-port: {{ $listener.port }}
cluster-cert: {{ default "/var/run/secrets/konnectivity/agents.crt" $listener.tls.hostPath.cert | quote }}
cluster-key: {{ default "/var/run/secrets/konnectivity/agents.key" $listener.tls.hostPath.key | quote }}
{{- if eq .Values.agentAuth.mode "mtls" }}
cluster-ca-cert: {{ default "/var/run/secrets/konnectivity/agents-ca.crt" $listener.clientCA.hostPath | quote }}
{{- else }}
agent-namespace: {{ .Values.agentAuth.namespace | quote }}
agent-service-account: {{ .Values.agentAuth.serviceAccount | quote }}
authentication-audience: {{ .Values.agentAuth.audience | quote }}
{{- end }}
{{- end -}}

{{/* The arguments as a list: the chart's flags, overridden by extraArgs, sorted by name. */}}
{{- define "konnectivity-server.args" -}}
{{- $flags := include "konnectivity-server.flags" . | fromYaml -}}
{{- /* Not merge, which treats false, 0 and empty strings as unset. */ -}}
{{- range $name, $value := .Values.extraArgs -}}{{- $_ := set $flags $name $value -}}{{- end -}}
{{- range $name, $value := $flags }}
{{- /* Each frontend has a flag of its own. */ -}}
{{- range ternary $value (list $value) (eq $name "frontend") }}
- {{ printf "--%s=%s" $name (include "konnectivity-server.flagValue" .) | quote }}
{{- end }}
{{- end }}
{{- end -}}
