{{/* The pod template that Deployment and DaemonSet share. */}}
{{- define "konnectivity-agent.podTemplate" -}}
{{- $values := .Values -}}
metadata:
  labels:
    {{- include "konnectivity-agent.podLabels" . | trim | nindent 4 }}
  {{- with $values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "konnectivity-agent.serviceAccountName" . | quote }}
  automountServiceAccountToken: {{ or $values.serviceAccount.automount $values.serverCount.leases }}
  {{- with include "konnectivity-agent.imagePullSecrets" . }}
  imagePullSecrets:
    {{- . | nindent 4 }}
  {{- end }}
  {{- if not (has $values.priorityClassName (list "" "none")) }}
  priorityClassName: {{ $values.priorityClassName | quote }}
  {{- end }}
  hostNetwork: {{ $values.hostNetwork }}
  dnsPolicy: {{ default (ternary "Default" "ClusterFirst" $values.hostNetwork) $values.dnsPolicy }}
  {{- with $values.dnsConfig }}
  dnsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.hostAliases }}
  hostAliases:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "konnectivity-agent.tolerations" . }}
  tolerations:
    {{- . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and (eq $values.kind "Deployment") $values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range $constraint := $values.topologySpreadConstraints }}
    {{- if not (hasKey $constraint "labelSelector") }}
    {{- $constraint = set (deepCopy $constraint) "labelSelector" (dict "matchLabels" (include "konnectivity-agent.selectorLabels" $ | fromYaml)) }}
    {{- end }}
    - {{ toYaml $constraint | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  {{- with $values.extraInitContainers }}
  initContainers:
    {{- tpl (toYaml .) $ | nindent 4 }}
  {{- end }}
  {{- with $values.extraPodSpec }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
  containers:
    {{- include "konnectivity-agent.container" . | nindent 4 }}
    {{- with $values.extraContainers }}
    {{- tpl (toYaml .) $ | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "konnectivity-agent.volumes" . | nindent 4 }}
    {{- with $values.extraVolumes }}
    {{- tpl (toYaml .) $ | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "konnectivity-agent.container" -}}
{{- $values := .Values -}}
{{- $probe := dict "port" "health" -}}
{{- if include "konnectivity-agent.healthOnLoopback" . -}}
{{- $probe = dict "port" "health" "host" $values.bindAddresses.health -}}
{{- end -}}
- name: konnectivity-agent
  image: {{ include "konnectivity-agent.image" . | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  {{- with $values.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  args:
    {{- include "konnectivity-agent.args" . | trim | nindent 4 }}
  env:
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    {{- if contains "POD_UID" (include "konnectivity-agent.agentID" .) }}
    - name: POD_UID
      valueFrom:
        fieldRef:
          fieldPath: metadata.uid
    {{- end }}
    {{- range $name, $field := include "konnectivity-agent.identifierVariables" . | fromYaml }}
    - name: {{ $name }}
      valueFrom:
        fieldRef:
          fieldPath: {{ $field }}
    {{- end }}
    {{- with $values.proxyEnv.httpsProxy }}
    - name: HTTPS_PROXY
      value: {{ . | quote }}
    {{- end }}
    {{- with $values.proxyEnv.noProxy }}
    - name: NO_PROXY
      value: {{ . | quote }}
    {{- end }}
    {{- with $values.extraEnv }}
    {{- tpl (toYaml .) $ | nindent 4 }}
    {{- end }}
  ports:
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
    {{- merge (deepCopy .) (dict "httpGet" (merge (dict "path" "/readyz") $probe)) | toYaml | nindent 4 }}
  {{- end }}
  {{- with $values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  {{- with $values.extraContainerSpec }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
  volumeMounts:
    - name: konnectivity
      mountPath: /var/run/secrets/konnectivity
      readOnly: true
    {{- with $values.extraVolumeMounts }}
    {{- tpl (toYaml .) $ | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Mode of projected files. They belong to root and to the pod's fsGroup. Without an fsGroup all users may read them, that is only the
containers that mount the volume: users of the host have no access to kubelet's folders. */}}
{{- define "konnectivity-agent.fileMode" -}}
{{- if or (include "konnectivity-agent.runsAsRoot" .) (hasKey (default dict .Values.podSecurityContext) "fsGroup") -}}
288 # 0440
{{- else -}}
292 # 0444
{{- end -}}
{{- end -}}

{{/* Token or certificate, and the servers' CA, in one projected volume that kubelet keeps up to date. */}}
{{- define "konnectivity-agent.volumes" -}}
{{- $values := .Values -}}
- name: konnectivity
  projected:
    defaultMode: {{ include "konnectivity-agent.fileMode" . }}
    sources:
      {{- if eq $values.auth.mode "token" }}
      - serviceAccountToken:
          path: token
          audience: {{ $values.auth.token.audience | quote }}
          expirationSeconds: {{ int $values.auth.token.expirationSeconds }}
      {{- else }}
      - secret:
          name: {{ include "konnectivity-agent.mtlsSecret" . | quote }}
          items:
            - key: tls.crt
              path: tls.crt
            - key: tls.key
              path: tls.key
      {{- end }}
      {{- if $values.ca.existingSecret }}
      - secret:
          name: {{ $values.ca.existingSecret | quote }}
          items:
            - key: {{ $values.ca.key }}
              path: ca.crt
      {{- else if $values.ca.configMap }}
      - configMap:
          name: {{ $values.ca.configMap | quote }}
          items:
            - key: {{ $values.ca.key }}
              path: ca.crt
      {{- end }}
{{- end -}}
