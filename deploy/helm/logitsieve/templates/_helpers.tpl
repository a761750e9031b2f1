{{- define "logitsieve.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "logitsieve.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "logitsieve.labels" -}}
{{ include "logitsieve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "logitsieve.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Strings, numbers and flags of JSON are those of TOML. */}}
{{- define "logitsieve.toml" -}}
{{- $set := dict "model_repository" "/models" "kernel_cache" "/var/cache/logitsieve/own" -}}
{{- $_ := set $set "port" (ternary .Values.proxy.serverPort .Values.ports.grpc .Values.proxy.enabled) -}}
{{- $_ := set $set "http_port" .Values.ports.http -}}
{{- if .Values.tls.secret -}}
{{- $_ := set $set "tls_cert" "/etc/logitsieve/tls/tls.crt" -}}
{{- $_ := set $set "tls_key" "/etc/logitsieve/tls/tls.key" -}}
{{- if .Values.tls.clientCA -}}
{{- $_ := set $set "tls_client_ca" "/etc/logitsieve/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if .Values.apiKeys.existingSecret -}}
{{- $_ := set $set "api_key_file" "/etc/logitsieve/api-keys/api-keys" -}}
{{- end -}}
{{- range $key, $value := merge $set .Values.serve }}
{{ $key }} = {{ toJson $value }}
{{- end -}}
{{- end -}}
