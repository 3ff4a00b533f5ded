{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/part-of: octavo
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "octavo.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (print .Chart.AppVersion (ternary "-cuda" "" .Values.gpu)) }}
{{- end }}

{{/* What a Secret, a claim and the place of the server ask for, under what the user sets. */}}
{{- define "octavo.config" -}}
{{- $own := dict "OCTAVO_HOST" "0.0.0.0" "OCTAVO_LOG_FORMAT" "json" }}
{{- if .Values.apiKeysSecret }}{{ $_ := set $own "OCTAVO_API_KEY_FILE" "/etc/octavo/keys.toml" }}{{ end }}
{{- range $name, $value := .Values.config }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $own $name $value }}{{ end }}
{{- end }}
{{- if .Values.modelClaim }}
{{- $_ := set $own "OCTAVO_MODEL" "/mnt/models" }}
{{- if not (hasKey $own "OCTAVO_SERVED_MODEL_NAME") }}{{ $_ := set $own "OCTAVO_SERVED_MODEL_NAME" "model" }}{{ end }}
{{- end }}
{{- toYaml $own }}
{{- end }}

{{- define "octavo.resources" -}}
{{- if .Values.resources -}}
{{ toYaml .Values.resources }}
{{- else if .Values.gpu -}}
requests: {cpu: "4", memory: 16Gi}
limits: {memory: 16Gi, nvidia.com/gpu: 1}
{{- else -}}
requests: {cpu: "2", memory: 3Gi}
limits: {cpu: "2", memory: 3Gi}
{{- end }}
{{- end }}
