{{- define "logitsieve.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end -}}

{{- define "logitsieve.fullname" -}}
{{- $name := include "logitsieve.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "logitsieve.selector" -}}
app.kubernetes.io/name: {{ include "logitsieve.name" . }}
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
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $set "tls_cert" "/etc/logitsieve/tls/tls.crt" -}}
{{- $_ := set $set "tls_key" "/etc/logitsieve/tls/tls.key" -}}
{{- if .Values.tls.clientCA -}}
{{- $_ := set $set "tls_client_ca" "/etc/logitsieve/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if .Values.apiKeys.existingSecret -}}
{{- $_ := set $set "api_key_file" "/etc/logitsieve/api-keys/api-keys" -}}
{{- end -}}
{{- range $key, $value := merge $set .Values.config }}
{{ $key }} = {{ toJson $value }}
{{- end -}}
{{- end -}}
