{{/* The pod spec that Deployment, DaemonSet and static pod share. */}}
{{- define "konnectivity-server.podSpec" -}}
{{- $values := .Values -}}
{{- $static := eq $values.kind "StaticPodManifest" -}}
{{- $host := not (empty (include "konnectivity-server.hostNetwork" .)) -}}
{{- if not $static }}
serviceAccountName: {{ include "konnectivity-server.serviceAccountName" . | quote }}
automountServiceAccountToken: {{ or $values.serviceAccount.automount (not (empty (include "konnectivity-server.needsServiceAccount" .))) }}
{{- with include "konnectivity-server.imagePullSecrets" . }}
imagePullSecrets:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}
{{- if ne $values.priorityClassName "none" }}
priorityClassName: {{ default (ternary "system-cluster-critical" "system-node-critical" (eq $values.kind "Deployment")) $values.priorityClassName | quote }}
{{- end }}
hostNetwork: {{ $host }}
dnsPolicy: {{ default (ternary "Default" "ClusterFirst" $host) $values.dnsPolicy }}
{{- with $values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
{{- if not $static }}
nodeSelector:
  {{- if $values.nodeSelector }}
  {{- toYaml $values.nodeSelector | nindent 2 }}
  {{- else }}
  kubernetes.io/os: linux
  {{- if eq $values.kind "DaemonSet" }}
  node-role.kubernetes.io/control-plane: ""
  {{- end }}
  {{- end }}
{{- end }}
{{- with include "konnectivity-server.tolerations" . }}
tolerations:
  {{- . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and (eq $values.kind "Deployment") $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range $constraint := $values.topologySpreadConstraints }}
  {{- if not (hasKey $constraint "labelSelector") }}
  {{- $constraint = set (deepCopy $constraint) "labelSelector" (dict "matchLabels" (include "konnectivity-server.selectorLabels" $ | fromYaml)) }}
  {{- end }}
  - {{ toYaml $constraint | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- with $values.extraInitContainers }}
initContainers:
  {{- tpl (toYaml .) $ | nindent 2 }}
{{- end }}
{{- with $values.extraPodSpec }}
{{- tpl (toYaml .) $ | nindent 0 }}
{{- end }}
containers:
  {{- include "konnectivity-server.container" . | nindent 2 }}
  {{- with $values.extraContainers }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
volumes:
  {{- include "konnectivity-server.volumes" . | trim | nindent 2 }}
{{- end -}}

{{/* Without a kubeconfig the server uses the pod's own account to review tokens and to keep its lease. */}}
{{- define "konnectivity-server.needsServiceAccount" -}}
{{- if and (or (eq .Values.agentAuth.mode "token") .Values.leases.enabled) (not .Values.kubeconfig.hostPath) (not .Values.kubeconfig.existingSecret) -}}true{{- end -}}
{{- end -}}

{{- define "konnectivity-server.container" -}}
{{- $values := .Values -}}
{{- $probe := dict "port" "health" -}}
{{- if include "konnectivity-server.healthOnLoopback" . -}}
{{- $probe = dict "port" "health" "host" $values.bindAddresses.health -}}
{{- end -}}
- name: konnectivity-server
  image: {{ include "konnectivity-server.image" . | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  {{- with $values.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  args:
    {{- include "konnectivity-server.args" . | trim | nindent 4 }}
  env:
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    {{- with $values.extraEnv }}
    {{- tpl (toYaml .) $ | nindent 4 }}
    {{- end }}
  ports:
    - name: agents
      containerPort: {{ $values.agentListener.port }}
      protocol: TCP
    {{- if contains "tcp" (include "konnectivity-server.frontendTypes" $) }}
    - name: frontend
      containerPort: {{ $values.frontend.tcp.port }}
      protocol: TCP
    {{- end }}
    - name: health
      containerPort: {{ $values.ports.health }}
      protocol: TCP
    - name: admin
      containerPort: {{ $values.ports.admin }}
      protocol: TCP
  {{- with $values.probes.startup }}
  startupProbe:
    {{- merge (deepCopy .) (dict "httpGet" (merge (dict "path" "/healthz") $probe)) | toYaml | nindent 4 }}
  {{- end }}
  {{- with $values.probes.liveness }}
  livenessProbe:
    {{- merge (deepCopy .) (dict "httpGet" (merge (dict "path" "/healthz") $probe)) | toYaml | nindent 4 }}
  {{- end }}
  {{- with $values.probes.readiness }}
  readinessProbe:
    {{- merge (deepCopy .) (dict "httpGet" (merge (dict "path" (ternary "/healthz" "/readyz" (eq $values.kind "Sidecar"))) $probe)) | toYaml | nindent 4 }}
  {{- end }}
  {{- $pause := include "konnectivity-server.preStopSeconds" . | int }}
  {{- if $pause }}
  lifecycle:
    preStop:
      sleep:
        seconds: {{ $pause }}
  {{- end }}
  {{- with $values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or (eq $values.kind "Sidecar") $values.securityContext }}
  securityContext:
    {{- if eq $values.kind "Sidecar" }}
    {{- $context := omit (default dict $values.podSecurityContext) "fsGroup" "fsGroupChangePolicy" "supplementalGroups" "sysctls" }}
    {{- range $field, $value := $values.securityContext }}{{- $_ := set $context $field $value }}{{- end }}
    {{- toYaml $context | nindent 4 }}
    {{- else }}
    {{- toYaml $values.securityContext | nindent 4 }}
    {{- end }}
  {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  {{- with $values.extraContainerSpec }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
  volumeMounts:
    {{- include "konnectivity-server.volumeMounts" . | trim | nindent 4 }}
{{- end -}}
