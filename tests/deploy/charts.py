"""The Helm chart, rendered as an installation would."""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import helm_python
import yaml

from tests.deploy.dockerfile import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "logitsieve"

# Values files that between them take every branch of every template.
VARIANTS: dict[str, str] = {
    "defaults": "",
    "tls and API keys": """
        tls: {existingSecret: logitsieve-tls, clientCA: true}
        apiKeys: {existingSecret: logitsieve-api-keys}
    """,
    "tls without client certificates": "tls: {existingSecret: logitsieve-tls}",
    "a fixed number": "{autoscaling: {enabled: false}, replicaCount: 3}",
    "scaled by CPU": """
        autoscaling: {targetQueueMicroseconds: 0, targetCPUUtilizationPercentage: 70}
    """,
    "scaled by both": """
        autoscaling: {targetCPUUtilizationPercentage: 70, minReplicas: 3, maxReplicas: 20}
    """,
    "nothing optional": """
        autoscaling: {enabled: false}
        podDisruptionBudget: {enabled: false}
        networkPolicy: {enabled: false}
        preStopSeconds: 0
        resources: {}
    """,
    "behind HAProxy": "proxy: {enabled: true}",
    "behind HAProxy with TLS": """
        proxy: {enabled: true, serverPort: 50099}
        ports: {grpc: 8443}
        config: {host: "::"}
        tls: {existingSecret: logitsieve-tls}
        apiKeys: {existingSecret: logitsieve-api-keys}
    """,
    "open to monitoring only": "networkPolicy: {clients: []}",
    "closed to all": "networkPolicy: {clients: [], monitoring: []}",
    "other peers": """
        networkPolicy:
          clients:
            - ipBlock: {cidr: 10.0.0.0/8}
            - namespaceSelector: {}
              podSelector: {matchLabels: {decodes: "yes"}}
          monitoring: []
    """,
    "spans": """
        config: {otlp_endpoint: "http://collector.tracing:4318"}
        networkPolicy: {collector: [{namespaceSelector: {}}]}
    """,
    "on GPUs": (CHART.parent / "values-gpu.yaml").read_text(encoding="utf-8"),
    "everything": """
        image:
          repository: images.example/logitsieve
          digest: sha256:0000000000000000000000000000000000000000000000000000000000000000
          pullPolicy: Always
        imagePullSecrets: [{name: pull}]
        persistence: {existingClaim: models-read-many, subPath: production}
        kernelCache: {existingClaim: kernels}
        config:
          host: "::"
          admin: true
          admin_port: 50055
          device: cpu
          threads: 4
          max_rows: 4096
          max_k: 64
          max_samples: 16
          max_constraint_ids: 1048576
          max_in_flight: 1000
          max_queue_rows: 10000
          batch_delay_us: 50
          drain_s: 30.5
          max_connection_age_s: 120
          max_connection_age_grace_s: 45.5
          verify: sizes
          shadow_share: 0.001
          shadow_cpu: 0.1
          reflection: true
          log_format: json
        preStopSeconds: 20
        ports: {grpc: 8443, http: 8081}
        podDisruptionBudget: {maxUnavailable: 25%}
        serviceMonitor: {enabled: true, labels: {release: prometheus}}
        monitoring:
          rules: |
            groups:
              - name: logitsieve
                rules:
                  - alert: Shedding
                    expr: rate(logitsieve_requests_rejected_total[5m]) > 0
                    annotations: {summary: '{{ $labels.pod }} sheds'}
          dashboard: |
            {"title": "logitsieve", "legend": "{{model}} \\"p95\\""}
        extraArgs: [--log-level, debug]
        extraEnv:
          - {name: LOGITSIEVE_SERVE_THREADS, value: "2"}
          - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        serviceAccount: {name: decoders}
        podAnnotations: {kept: "true"}
        podLabels: {decodes: "yes"}
        nodeSelector: {kubernetes.io/arch: amd64}
        tolerations: [{key: decoders, operator: Exists, effect: NoSchedule}]
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms:
                - matchExpressions: [{key: disk, operator: In, values: [fast]}]
    """,
}


class Rendered(NamedTuple):
    documents: list[dict[str, Any]]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [document for document in self.documents if document["kind"] == kind]

    def named(self, name: str) -> dict[str, Any]:
        """The ConfigMap whose name ends so."""
        [found] = [m for m in self.all("ConfigMap") if m["metadata"]["name"].endswith(name)]
        return found

    def one(self, kind: str) -> dict[str, Any]:
        [document] = self.all(kind)
        return document

    @property
    def pod(self) -> dict[str, Any]:
        template: dict[str, Any] = self.one("Deployment")["spec"]["template"]
        return template

    @property
    def container(self) -> dict[str, Any]:
        [container, *_] = self.pod["spec"]["containers"]
        return dict(container)

    @property
    def proxy(self) -> dict[str, Any] | None:
        return next(iter(self.pod["spec"]["containers"][1:]), None)

    @property
    def options(self) -> dict[str, Any]:
        return tomllib.loads(self.named("logitsieve")["data"]["serve.toml"])


@contextmanager
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def render(values: str = "", *, name: str = "prod", namespace: str = "decoders") -> Rendered:
    """`helm template`; HelmError where the schema or a template refuses `values` (YAML)."""
    with chart() as loaded:
        manifests = loaded.render(yaml.safe_load(values) or {}, name=name, namespace=namespace)
    files = [text for file, text in sorted(manifests.items()) if file.endswith(".yaml")]
    return Rendered([found for text in files for found in yaml.safe_load_all(text) if found])
