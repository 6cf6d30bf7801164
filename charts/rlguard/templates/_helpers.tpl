{{- define "rlguard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "rlguard.labels" -}}
app.kubernetes.io/name: rlguard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* What selects a component's pods; it never changes, a Deployment's selector cannot. */}}
{{- define "rlguard.selector" -}}
app.kubernetes.io/name: rlguard
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- /* Environment from a map; a null removes an entry. Sorted, so that a rollout has a reason. */}}
{{- define "rlguard.environment" -}}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A map's values as a list; a null removes an entry. */}}
{{- define "rlguard.items" -}}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}
- {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}
