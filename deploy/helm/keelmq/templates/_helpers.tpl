{{- define "keelmq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "keelmq.labels" -}}
app.kubernetes.io/name: keelmq
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* host:port of each NameServer, or Controller, by their ids where asked. root, port, ids */}}
{{- define "keelmq.namesrvs" -}}
{{- $root := .root }}{{- $port := .port }}{{- $ids := .ids }}
{{- $name := printf "%s-namesrv" $root.Release.Name }}
{{- range $i := until (int $root.Values.namesrv.replicas) }}
{{- if $i }};{{ end }}
{{- if $ids }}n{{ $i }}-{{ end }}{{ $name }}-{{ $i }}.{{ $name }}.{{ $root.Release.Namespace }}.svc:{{ $port }}
{{- end }}
{{- end }}

{{/* Nobody but keelmq runs in there, and it writes to its volume alone. */}}
{{- define "keelmq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "keelmq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* /healthz is 503 also while a server waits for others: restarting it then helps nobody. /readyz is so until
     a broker is in the SyncStateSet: the next pod of an upgrade, or a drain, waits for it. */}}
{{- define "keelmq.probes" -}}
startupProbe:
  tcpSocket: { port: admin }
  periodSeconds: 2
  failureThreshold: 900
livenessProbe:
  tcpSocket: { port: admin }
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: admin }
  periodSeconds: 2
  failureThreshold: 3
{{- end }}

{{- define "keelmq.affinity" -}}
{{- $term := dict "labelSelector" (dict "matchLabels" .labels) "topologyKey" .root.Values.topologyKey }}
podAntiAffinity:
{{- if eq .root.Values.antiAffinity "hard" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - {{ toJson $term }}
{{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - {{ toJson (dict "weight" 100 "podAffinityTerm" $term) }}
{{- end }}
{{- end }}

{{- define "keelmq.claim" -}}
- metadata: { name: data }
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClassName }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources: { requests: { storage: {{ .storage }} } }
{{- end }}

{{- define "keelmq.env" -}}
- { name: KEELMQ_LOG, value: {{ .Values.log.level | quote }} }
- { name: KEELMQ_LOG_FORMAT, value: {{ .Values.log.format | quote }} }
- { name: POD_IP, valueFrom: { fieldRef: { fieldPath: status.podIP } } }
- { name: POD_NAME, valueFrom: { fieldRef: { fieldPath: metadata.name } } }
- { name: POD_INDEX, valueFrom: { fieldRef: { fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']" } } }
{{- end }}

{{/* A line for each key. A whole number of a file of values is a float to helm, which writes 4.194304e+06. */}}
{{- define "keelmq.keys" -}}
{{- range $key, $value := . }}
{{ $key }}={{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end }}

{{/* The whole file: what a pod is restarted for. root, group */}}
{{- define "keelmq.brokerConf" -}}
bindAddress=0.0.0.0
listenPort=10911
adminPort=9801
adminAddress=0.0.0.0
brokerName={{ .group.name }}
brokerClusterName={{ .root.Values.clusterName }}
namesrvAddr={{ include "keelmq.namesrvs" (dict "root" .root "port" 9876 "ids" false) }}
enableControllerMode=true
controllerAddr={{ include "keelmq.namesrvs" (dict "root" .root "port" 9878 "ids" false) }}
totalReplicas={{ .group.replicas }}
storePathRootDir=/data/store
haSecretFile=/run/secrets/keelmq/ha
peerCredentialsFile=/run/secrets/keelmq/peers.json
{{- include "keelmq.keys" .group.config }}
{{- end }}

{{- define "keelmq.namesrvConf" -}}
bindAddress=0.0.0.0
listenPort=9876
adminPort=9800
adminAddress=0.0.0.0
enableControllerInNamesrv=true
controllerDLegerPeers={{ include "keelmq.namesrvs" (dict "root" . "port" 9878 "ids" true) }}
controllerStorePath=/data/raft
kvConfigPath=/data/kvConfig.json
raftSecretFile=/run/secrets/keelmq/raft
peerCredentialsFile=/run/secrets/keelmq/peers.json
{{- include "keelmq.keys" .Values.namesrv.config }}
{{- end }}
