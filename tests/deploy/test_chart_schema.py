"""values.schema.json refuses what the chart does not mean, before anything is installed."""

import json
from dataclasses import fields
from typing import Any

import pytest
import yaml
from helm_python import HelmError

from logitsieve.server.config import ServeConfig
from tests.deploy.charts import CHART, chart, render

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

# A name, and what it may not be.
REFUSED = """
replicas: 2
replicaCount: two | -1
image: {name: logitsieve} | {digest: latest} | {pullPolicy: Sometimes}
imagePullSecrets: [pull] | [{}]
persistence: {existingClaim: ""} | {existingClaim: Not_A_Name} | {subPath: /absolute}
kernelCache: {sizeLimit: much}
config: {thread: 2} | {threads: 0} | {threads: "2"} | {threads: 1.5} | {device: gpu} | {drain_s: -1}
config: {drain_s: null} | {verify: none} | {shadow_share: 1.5} | {batch_delay_us: 1000}
config: {model_repository: /elsewhere} | {kernel_cache: /elsewhere} | {tls_cert: /elsewhere}
config: {port: 1234} | {admin_host: 0.0.0.0} | {log_format: xml}
preStopSeconds: -1
ports: {grpc: 0} | {grpc: 70000} | {grpc: 8080, http: https}
tls: {clientCA: true} | {secretName: logitsieve-tls}
apiKeys: {existingSecret: logitsieve-api-keys}
proxy: {enabled: 1} | {image: ""} | {serverPort: 0} | {resources: {limits: {cpu: lots}}} | {tls: x}
resources: {requests: {cpu: lots}} | {requests: 1}
autoscaling: {targetQueueMicroseconds: 0} | {minReplicas: 0} | {targetCPUUtilizationPercentage: 70%}
podDisruptionBudget: {maxUnavailable: 0} | {maxUnavailable: 0%}
networkPolicy: {clients: [{}]} | {clients: [{pods: {}}]} | {clients: all}
serviceMonitor: {interval: 15}
podLabels: {decodes: true}
"""
LINES = [line.partition(": ") for line in REFUSED.strip().splitlines()]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, _, row in LINES for value in row.split(" | ")]
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    first = name.replace("apiKeys", "tls")  # what API keys need
    with pytest.raises(HelmError, match=first):
        render(f"{name}: {value}")


def test_the_schema_is_closed_and_of_the_defaults_which_have_comments() -> None:
    with chart() as loaded:
        loaded.validate_schema({})
        assert loaded.values == VALUES
    assert closed(SCHEMA) == []
    assert SCHEMA["properties"].keys() - {"global"} == VALUES.keys()
    for name, value in VALUES.items():
        named = SCHEMA["properties"][name].get("properties")
        if named and name not in ("config", "resources"):
            assert named.keys() == value.keys()
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    blocks = "\n".join(lines).split("\n\n")
    assert [block for block in blocks if "#" not in block] == []


def closed(schema: dict[str, Any], path: str = "") -> list[str]:
    """Paths of objects with named properties that would let others pass."""
    properties = schema.get("properties", {})
    found = [path] if properties and schema.get("additionalProperties") is not False else []
    return found + [at for name in properties for at in closed(properties[name], f"{path}.{name}")]


def test_config_has_every_option_that_the_chart_does_not_set() -> None:
    options = {field.name for field in fields(ServeConfig)} - {"admin_host"}  # on loopback
    secrets = "tls: {existingSecret: a, clientCA: true}, apiKeys: {existingSecret: b}"
    everything = f"{{{secrets}, config: {{host: null}}}}"
    named = SCHEMA["properties"]["config"]["properties"].keys()
    by_chart = render(everything).options.keys() - VALUES["config"].keys()
    assert named | by_chart == options
    assert not named & by_chart
