{{/* The value of a flag as text: lists joined by commas, numbers as written. */}}
{{- define "konnectivity-agent.flagValue" -}}
{{- if kindIs "slice" . -}}{{- join "," . -}}
{{- else if kindIs "string" . -}}{{- . -}}
{{- else -}}{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/* All flags by name, without extraArgs. */}}
{{- define "konnectivity-agent.flags" -}}
{{- $values := .Values -}}
agent-id: {{ include "konnectivity-agent.agentID" . }}
proxy-server-host: {{ $values.proxyServer.host | quote }}
proxy-server-port: {{ $values.proxyServer.port }}
{{- with $values.proxyServer.alpnProtos }}
alpn-proto: {{ join "," . | quote }}
{{- end }}
{{- if or $values.ca.existingSecret $values.ca.configMap }}
ca-cert: /var/run/secrets/konnectivity/ca.crt
{{- end }}
{{- if eq $values.auth.mode "token" }}
service-account-token-path: /var/run/secrets/konnectivity/token
{{- else }}
agent-cert: /var/run/secrets/konnectivity/tls.crt
agent-key: /var/run/secrets/konnectivity/tls.key
{{- end }}
{{- with $values.agentIdentifiers }}
agent-identifiers: {{ . | quote }}
{{- end }}
sync-interval: {{ $values.sync.interval | quote }}
sync-interval-cap: {{ $values.sync.intervalCap | quote }}
{{- if $values.sync.forever }}
sync-forever: true
{{- end }}
{{- with $values.keepaliveTime }}
keepalive-time: {{ . | quote }}
{{- end }}
{{- with $values.xfrChannelSize }}
xfr-channel-size: {{ . }}
{{- end }}
{{- if $values.serverCount.leases }}
count-server-leases: true
lease-namespace: {{ $values.serverCount.leaseNamespace | quote }}
{{- /* Go knows only the old name of this flag. */}}
{{ ternary "lease-label-selector" "lease-label" $values.ownFlags }}: {{ $values.serverCount.labelSelector | quote }}
server-count-source: {{ $values.serverCount.source | quote }}
{{- end }}
{{- with $values.bindAddresses.health }}
health-server-host: {{ . | quote }}
{{- end }}
health-server-port: {{ $values.ports.health }}
admin-bind-address: {{ $values.bindAddresses.admin | quote }}
admin-server-port: {{ $values.ports.admin }}
v: {{ $values.logging.verbosity }}
{{- if $values.ownFlags }}
drain-timeout: {{ $values.drainTimeout | quote }}
min-ready-servers: {{ $values.minReadyServers }}
{{- with $values.keepaliveTimeout }}
keepalive-timeout: {{ . | quote }}
{{- end }}
{{- with $values.memoryLimit }}
memory-limit: {{ . | quote }}
{{- end }}
{{- with $values.destinations.deny }}
deny-destinations: {{ join "," . | quote }}
{{- end }}
{{- with $values.destinations.allow }}
allow-destinations: {{ join "," . | quote }}
{{- end }}
{{- if $values.destinations.cloudMetadata }}
allow-cloud-metadata: true
{{- end }}
{{- if ne $values.logging.format "text" }}
log-format: {{ $values.logging.format }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The arguments as a list: the chart's flags, overridden by extraArgs, sorted by name. */}}
{{- define "konnectivity-agent.args" -}}
{{- $flags := include "konnectivity-agent.flags" . | fromYaml -}}
{{- /* Not merge, which treats false, 0 and empty strings as unset. */ -}}
{{- range $name, $value := .Values.extraArgs -}}{{- $_ := set $flags $name $value -}}{{- end -}}
{{- range $name, $value := $flags }}
- {{ printf "--%s=%s" $name (include "konnectivity-agent.flagValue" $value) | quote }}
{{- end }}
{{- end -}}
