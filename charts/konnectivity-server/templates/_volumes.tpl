{{/* Files from Secrets and ConfigMaps: sources of one projected volume, which kubelet keeps up to date. */}}
{{- define "konnectivity-server.sources" -}}
{{- $values := .Values -}}
{{- $pairs := dict "agents" (include "konnectivity-server.agentSecret" .) -}}
{{- $authorities := dict -}}
{{- if eq $values.agentAuth.mode "mtls" -}}{{- $_ := set $authorities "agents" $values.agentListener.clientCA -}}{{- end -}}
{{- if contains "tcp" (include "konnectivity-server.frontendTypes" $) -}}
{{- $_ := set $pairs "frontend" (include "konnectivity-server.frontendSecret" .) -}}
{{- $_ := set $authorities "frontend" $values.frontend.tcp.clientCA -}}
{{- end -}}
{{- range $side, $secret := $pairs }}
{{- if $secret }}
- secret:
    name: {{ $secret | quote }}
    items:
      - key: tls.crt
        path: {{ $side }}.crt
      - key: tls.key
        path: {{ $side }}.key
{{- end }}
{{- end }}
{{- range $side, $ca := $authorities }}
{{- if $ca.existingSecret }}
- secret:
    name: {{ $ca.existingSecret | quote }}
    items:
      - key: {{ $ca.key }}
        path: {{ $side }}-ca.crt
{{- else if $ca.configMap }}
- configMap:
    name: {{ $ca.configMap | quote }}
    items:
      - key: {{ $ca.key }}
        path: {{ $side }}-ca.crt
{{- end }}
{{- end }}
{{- with $values.kubeconfig.existingSecret }}
- secret:
    name: {{ . | quote }}
    items:
      - key: {{ $values.kubeconfig.key }}
        path: kubeconfig
{{- end }}
{{- end -}}

{{/* Mode of projected files. They belong to root and to the pod's fsGroup. A sidecar's pod has no fsGroup of ours, so there all users may read
them, that is only the containers that mount the volume: users of the host have no access to kubelet's folders. */}}
{{- define "konnectivity-server.fileMode" -}}
{{- if or (include "konnectivity-server.runsAsRoot" .) (and (ne .Values.kind "Sidecar") (hasKey (default dict .Values.podSecurityContext) "fsGroup")) -}}
288 # 0440
{{- else -}}
292 # 0444
{{- end -}}
{{- end -}}

{{/* Volumes. Certificates of the host are mounted with their folder, so that the pod sees replaced files. */}}
{{- define "konnectivity-server.volumes" -}}
{{- $values := .Values -}}
{{- with include "konnectivity-server.sources" . | trim }}
- name: konnectivity
  projected:
    defaultMode: {{ include "konnectivity-server.fileMode" $ }}
    sources:
      {{- . | nindent 6 }}
{{- end }}
{{- if contains "uds" (include "konnectivity-server.frontendTypes" $) }}
- name: socket
  {{- if eq $values.kind "Sidecar" }}
  emptyDir: {}
  {{- else }}
  hostPath:
    path: {{ $values.frontend.uds.hostPath }}
    type: DirectoryOrCreate
  {{- end }}
{{- end }}
{{- range $index, $folder := include "konnectivity-server.hostFolders" . | fromYamlArray }}
- name: host-{{ $index }}
  hostPath:
    path: {{ $folder }}
    type: Directory
{{- end }}
{{- with $values.kubeconfig.hostPath }}
- name: kubeconfig
  hostPath:
    path: {{ . }}
    type: File
{{- end }}
{{- with $values.extraVolumes }}
{{ tpl (toYaml .) $ }}
{{- end }}
{{- end -}}

{{- define "konnectivity-server.volumeMounts" -}}
{{- $values := .Values -}}
{{- if include "konnectivity-server.sources" . | trim }}
- name: konnectivity
  mountPath: /var/run/secrets/konnectivity
  readOnly: true
{{- end }}
{{- if contains "uds" (include "konnectivity-server.frontendTypes" $) }}
- name: socket
  mountPath: {{ $values.frontend.uds.hostPath }}
{{- end }}
{{- range $index, $folder := include "konnectivity-server.hostFolders" . | fromYamlArray }}
- name: host-{{ $index }}
  mountPath: {{ $folder }}
  readOnly: true
{{- end }}
{{- with $values.kubeconfig.hostPath }}
- name: kubeconfig
  mountPath: {{ . }}
  readOnly: true
{{- end }}
{{- with $values.extraVolumeMounts }}
{{ tpl (toYaml .) $ }}
{{- end }}
{{- end -}}
