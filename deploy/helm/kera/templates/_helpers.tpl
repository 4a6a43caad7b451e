{{- define "kera.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of everything. 40 characters: what is appended still fits into 63. */}}
{{- define "kera.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kera.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kera.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The service that gives each broker a name of its own. */}}
{{- define "kera.headless" -}}
{{- printf "%s-brokers" (include "kera.fullname" .) -}}
{{- end -}}

{{- define "kera.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kera.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kera.labels" -}}
{{ include "kera.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* kera.toml from .Values.settings: text in quotes, numbers without a fraction. */}}
{{- define "kera.toml" -}}
{{- range $section, $keys := .Values.settings }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{- if kindIs "string" $value }}
{{ $key }} = {{ $value | quote }}
{{- else if kindIs "bool" $value }}
{{ $key }} = {{ $value }}
{{- else }}
{{ $key }} = {{ int64 $value }}
{{- end }}
{{- end }}
{{ end }}
{{- end -}}

{{/* Where brokers share their records; empty for one broker with a store of its own. */}}
{{- define "kera.store" -}}
{{- $members := .Values.cluster.etcd -}}
{{- if .Values.etcd.enabled -}}
{{- if $members }}{{ fail "etcd.enabled and cluster.etcd are both set: use the chart's etcd or your own" }}{{ end -}}
{{- if or .Values.cluster.tlsSecret .Values.cluster.userSecret }}{{ fail "cluster.tlsSecret and cluster.userSecret are for an etcd of your own: the chart's has neither TLS nor users" }}{{ end -}}
{{- $members = list (printf "%s-etcd.%s.svc.%s:2379" (include "kera.fullname" .) .Release.Namespace .Values.clusterDomain) -}}
{{- end -}}
{{- if $members -}}
{{- if semverCompare "<1.28.0-0" .Capabilities.KubeVersion.Version }}{{ fail "several brokers need Kubernetes 1.28, whose stateful sets tell pods their number" }}{{ end -}}
{{- if and .Values.cluster.tlsClientCertificate (not .Values.cluster.tlsSecret) }}{{ fail "cluster.tlsClientCertificate is set and cluster.tlsSecret, which has it, is empty" }}{{ end -}}
{{- if and .Values.cluster.rack .Values.cluster.rackLabel }}{{ fail "cluster.rack and cluster.rackLabel are both set: leave one empty" }}{{ end -}}
etcd://{{ join "," $members }}{{ with .Values.cluster.prefix }}/{{ trimSuffix "/" . }}{{ end }}
{{- else if gt (int .Values.replicas) 1 -}}
{{- fail (printf "replicas is %d and there is no etcd: several brokers share their records there, so set cluster.etcd to its members as host:port, or etcd.enabled to try things out" (int .Values.replicas)) -}}
{{- else if or .Values.cluster.tlsSecret .Values.cluster.userSecret -}}
{{- fail "cluster.tlsSecret or cluster.userSecret is set and there is no etcd: set cluster.etcd to its members as host:port" -}}
{{- end -}}
{{- end -}}

{{/* What a broker is told of TLS and of listeners that ask nobody, and its own commands of the way to it. */}}
{{- define "kera.securityEnv" -}}
{{- $asks := or .Values.tls.secret .Values.settings.tls .Values.settings.auth .Values.settings.acl -}}
{{- if not (or $asks (has "native" .Values.insecure)) -}}
{{- fail "brokers would refuse to start, as nothing has clients prove who they are: name a secret with certificates as tls.secret, or to try things out add native (and kafka) to insecure" -}}
{{- end -}}
{{- if and .Values.tls.http (not .Values.tls.secret) -}}
{{- fail "tls.http is set and tls.secret, which has the certificate, is empty" -}}
{{- end -}}
{{- $listeners := dig "auth" "listeners" "" .Values.settings | toString -}}
{{- if and (contains "http" $listeners) (not .Values.tls.http) -}}
{{- fail "settings.auth.listeners has http, where clients send their passwords: set tls.http, so that nobody reads them on the way" -}}
{{- end -}}
{{- $protects := or .Values.tls.secret (dig "tls" "listeners" "" .Values.settings) (dig "auth" "listeners" "" .Values.settings) (dig "acl" "enabled" false .Values.settings) -}}
{{- $proves := and .Values.cluster.tlsSecret (or .Values.cluster.userSecret .Values.cluster.tlsClientCertificate) -}}
{{- if and (include "kera.store" .) $protects (not (or $proves (has "etcd" .Values.insecure))) -}}
{{- fail "brokers would refuse to start, as whoever gets to etcd makes users and rules as he likes: name secrets for an etcd with TLS as cluster.tlsSecret and with users as cluster.userSecret (or set cluster.tlsClientCertificate), or to try things out add etcd to insecure" -}}
{{- end -}}
- name: KERA_INSECURE
  value: {{ join "," .Values.insecure | default "false" | quote }}
{{- if .Values.tls.secret }}
- name: KERA_TLS_LISTENERS
  value: native{{ if .Values.kafka.enabled }},kafka{{ end }}{{ if and .Values.tls.replicas (include "kera.store" .) }},cluster{{ end }}{{ if .Values.tls.http }},http{{ end }}
- name: KERA_TLS_CERTIFICATE
  value: /etc/kera-tls/tls.crt
- name: KERA_TLS_KEY
  value: /etc/kera-tls/tls.key
- name: KERA_TLS_CLIENT_AUTH
  value: {{ .Values.tls.clientAuth }}
{{- if ne .Values.tls.clientAuth "none" }}
- name: KERA_TLS_CLIENT_CA
  value: /etc/kera-tls/ca.crt
{{- end }}
{{- if include "kera.store" . }}
- name: KERA_TLS_BROKER_CA
  value: /etc/kera-tls/ca.crt
{{- end }}
# Of commands that are run in the container.
- name: KERA_TLS_CA
  value: /etc/kera-tls/ca.crt
- name: KERA_TLS_CLIENT_CERT
  value: /etc/kera-tls/tls.crt
- name: KERA_TLS_CLIENT_KEY
  value: /etc/kera-tls/tls.key
{{- end }}
{{- end -}}

{{/* What every container that speaks to etcd is told of it. */}}
{{- define "kera.storeEnv" -}}
- name: KERA_CLUSTER_STORE
  value: {{ include "kera.store" . | quote }}
{{- if .Values.cluster.tlsSecret }}
- name: KERA_CLUSTER_STORE_CA
  value: /etc/kera-etcd/tls/ca.crt
{{- if .Values.cluster.tlsClientCertificate }}
- name: KERA_CLUSTER_STORE_CERTIFICATE
  value: /etc/kera-etcd/tls/tls.crt
- name: KERA_CLUSTER_STORE_KEY
  value: /etc/kera-etcd/tls/tls.key
{{- end }}
{{- end }}
{{- if .Values.cluster.userSecret }}
- name: KERA_CLUSTER_STORE_USER
  valueFrom:
    secretKeyRef:
      name: {{ .Values.cluster.userSecret }}
      key: username
# A file, which is read anew whenever etcd is told the password.
- name: KERA_CLUSTER_STORE_PASSWORD_FILE
  value: /etc/kera-etcd/user/password
{{- end }}
{{- end -}}

{{/* Where those containers have the files of that; empty where there are none. */}}
{{- define "kera.storeMounts" -}}
{{- if .Values.cluster.tlsSecret }}
- name: etcd-tls
  mountPath: /etc/kera-etcd/tls
  readOnly: true
{{- end }}
{{- if .Values.cluster.userSecret }}
- name: etcd-user
  mountPath: /etc/kera-etcd/user
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Memory for open replicas of other brokers; `copies` is its former name. */}}
{{- define "kera.replicaMemory" -}}
{{- .Values.cluster.copies | default .Values.cluster.replicaMemory -}}
{{- end -}}

{{/* Shared memory for replicas, and some for other files in it. */}}
{{- define "kera.sharedMemory" -}}
{{- $replicas := include "kera.replicaMemory" . -}}
{{- if hasSuffix "Gi" $replicas -}}
{{- printf "%dMi" (add (mul (trimSuffix "Gi" $replicas | int64) 1024) 64) -}}
{{- else -}}
{{- printf "%dMi" (add (trimSuffix "Mi" $replicas | int64) 64) -}}
{{- end -}}
{{- end -}}

{{/* Brokers of a cluster keep off each other's nodes; what the values say comes first. */}}
{{- define "kera.affinity" -}}
{{- $ours := dict -}}
{{- if include "kera.store" . -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "kera.selectorLabels" . | fromYaml)) -}}
{{- if eq .Values.cluster.antiAffinity "required" -}}
{{- $ours = dict "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) -}}
{{- else if eq .Values.cluster.antiAffinity "preferred" -}}
{{- $ours = dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) -}}
{{- end -}}
{{- end -}}
{{- with merge (deepCopy .Values.affinity) $ours }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* Of etcd's own: no selector of the brokers takes them for one. */}}
{{- define "kera.etcdLabels" -}}
app.kubernetes.io/name: {{ include "kera.name" . }}-etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
