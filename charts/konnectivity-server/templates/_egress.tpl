{{/* kube-apiserver's EgressSelectorConfiguration. */}}
{{- define "konnectivity-server.egressSelectorConfiguration" -}}
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
  # Connections to nodes, pods and services. Connections to the control plane and etcd stay direct.
  - name: cluster
    connection:
      proxyProtocol: {{ ternary "GRPC" "HTTPConnect" (eq .Values.mode "grpc") }}
      transport:
        {{- if eq .Values.frontend.type "uds" }}
        uds:
          udsName: {{ include "konnectivity-server.apiserverSocketDirectory" . }}/{{ .Values.frontend.uds.socketName }}
        {{- else }}
        tcp:
          url: https://{{ include "konnectivity-server.frontendHost" . }}:{{ .Values.frontend.tcp.port }}
          tlsConfig:
            caBundle: {{ .Values.egressSelector.apiserverCertificateDirectory }}/ca.crt
            clientCert: {{ .Values.egressSelector.apiserverCertificateDirectory }}/client.crt
            clientKey: {{ .Values.egressSelector.apiserverCertificateDirectory }}/client.key
        {{- end }}
{{- end -}}

{{- define "konnectivity-server.apiserverSocketDirectory" -}}
{{- default .Values.frontend.uds.hostPath .Values.egressSelector.apiserverSocketDirectory | trimSuffix "/" -}}
{{- end -}}

{{/* Whether kube-apiserver is a pod in the release's namespace, which mounts Secrets and ConfigMaps; otherwise it uses files of its host. */}}
{{- define "konnectivity-server.apiserverIsPod" -}}
{{- if or (eq .Values.kind "Sidecar") (and (eq .Values.frontend.type "tcp") .Values.egressSelector.apiserverClientSecret) -}}true{{- end -}}
{{- end -}}

{{- define "konnectivity-server.apiserverFlag" -}}
--egress-selector-config-file=/etc/kubernetes/konnectivity/egress-selector-configuration.yaml
{{- end -}}

{{/* A strategic merge patch of kube-apiserver's manifest. It cannot contain the flag, because it would replace the whole list `command`. */}}
{{- define "konnectivity-server.apiserverPatch" -}}
{{- $uds := eq .Values.frontend.type "uds" -}}
{{- $pod := include "konnectivity-server.apiserverIsPod" . -}}
spec:
  containers:
    - name: kube-apiserver
      volumeMounts:
        - name: konnectivity-config
          mountPath: /etc/kubernetes/konnectivity
          readOnly: true
        {{- if $uds }}
        - name: {{ ternary "socket" "konnectivity-socket" (eq .Values.kind "Sidecar") }}
          mountPath: {{ include "konnectivity-server.apiserverSocketDirectory" . }}
        {{- else }}
        - name: konnectivity-client
          mountPath: {{ .Values.egressSelector.apiserverCertificateDirectory }}
          readOnly: true
        {{- end }}
  volumes:
    - name: konnectivity-config
      {{- if $pod }}
      configMap:
        name: {{ include "konnectivity-server.fullname" . }}-egress-selector
        items:
          - key: egress-selector-configuration.yaml
            path: egress-selector-configuration.yaml
      {{- else }}
      hostPath:
        path: /etc/kubernetes/konnectivity
        type: Directory
      {{- end }}
    {{- if and $uds (ne .Values.kind "Sidecar") }}
    - name: konnectivity-socket
      hostPath:
        path: {{ .Values.frontend.uds.hostPath }}
        type: DirectoryOrCreate
    {{- else if not $uds }}
    - name: konnectivity-client
      {{- if $pod }}
      secret:
        secretName: {{ .Values.egressSelector.apiserverClientSecret | quote }}
        items:
          - key: ca.crt
            path: ca.crt
          - key: tls.crt
            path: client.crt
          - key: tls.key
            path: client.key
      {{- else }}
      hostPath:
        path: {{ .Values.egressSelector.apiserverCertificateDirectory }}
        type: Directory
      {{- end }}
    {{- end }}
{{- end -}}

{{/* The agents' identifiers. With enforce they are those that the token or the source address proves. */}}
{{- define "konnectivity-server.agentIdentifiers" -}}
{{- $auth := .Values.agentAuth -}}
{{- $free := ne $auth.identityBinding "enforce" -}}
{{- $identifiers := list -}}
{{- if has "destHost" .Values.proxyStrategies -}}
{{- if or $free $auth.sourceAddress -}}{{- $identifiers = append $identifiers "ipv4=$(HOST_IP)" -}}{{- end -}}
{{- if or $free (eq $auth.mode "token") -}}{{- $identifiers = append $identifiers "host=$(NODE_NAME)" -}}{{- end -}}
{{- end -}}
{{- if has "defaultRoute" .Values.proxyStrategies -}}{{- $identifiers = append $identifiers "default-route=true" -}}{{- end -}}
{{- join "&" $identifiers -}}
{{- end -}}

{{/* Matching values for the chart konnectivity-agent. */}}
{{- define "konnectivity-server.agentValues" -}}
{{- $values := .Values -}}
{{- $node := has "destHost" $values.proxyStrategies -}}
{{- $identifiers := include "konnectivity-server.agentIdentifiers" . -}}
image:
  registry: {{ include "konnectivity-server.registry" . | quote }}
  {{- with $values.image.tag }}
  tag: {{ . | quote }}
  {{- end }}
{{- with include "konnectivity-server.imagePullSecrets" . }}
imagePullSecrets:
  {{- . | nindent 2 }}
{{- end }}
{{- if not $values.ownFlags }}
ownFlags: false
{{- end }}
fullnameOverride: {{ $values.agentAuth.serviceAccount | quote }}
{{- if $node }}
kind: DaemonSet
{{- if $values.agentAuth.sourceAddress }}
# The source address of the connection proves the agent's address, so it must be the address of the node.
hostNetwork: true
{{- if regexMatch "\\.svc(\\.|$)" (include "konnectivity-server.externalHost" .) }}
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- end }}
{{- end }}
{{- with $identifiers }}
agentIdentifiers: {{ . }}
{{- end }}
# Agents verify the servers' certificate with the ConfigMap kube-root-ca.crt. Set ca.existingSecret or ca.configMap if another CA issued it.
proxyServer:
  host: {{ include "konnectivity-server.externalHost" . | quote }}
  port: {{ include "konnectivity-server.externalPort" . }}
  strategies: {{ toJson $values.proxyStrategies }}
auth:
  mode: {{ $values.agentAuth.mode }}
  {{- if eq $values.agentAuth.mode "token" }}
  token:
    audience: {{ $values.agentAuth.audience | quote }}
  {{- else }}
  mtls:
    existingSecret: konnectivity-agent-client
  {{- end }}
{{- if include "konnectivity-server.needsServiceAccount" . }}
# The servers use the rights of their own service account in this cluster.
rbac:
  serverAuthDelegator: false
  serverLeases: false
{{- end }}
{{- if $values.leases.enabled }}
serverCount:
  leases: true
  leaseNamespace: {{ $values.leases.namespace | quote }}
  labelSelector: {{ $values.leases.label | quote }}
{{- end }}
{{- if include "konnectivity-server.agentsLookForMore" . }}
sync:
  forever: true
{{- end }}
{{- end -}}
