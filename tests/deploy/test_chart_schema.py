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

REFUSED = [
    "replica: 2",
    "replicas: two",
    "replicas: -1",
    "image: {name: logitsieve}",
    "image: {digest: latest}",
    "image: {pullPolicy: Sometimes}",
    'models: {claim: ""}',
    "models: {claim: Not_A_Name}",
    "models: {subPath: /absolute}",
    "kernelCache: {sizeLimit: much}",
    "serve: {thread: 2}",
    "serve: {threads: 0}",
    "serve: {device: gpu}",
    'serve: {threads: "2"}',
    "serve: {threads: 1.5}",
    "serve: {drain_s: -1}",
    "serve: {drain_s: null}",
    "serve: {verify: none}",
    "serve: {shadow_share: 1.5}",
    "serve: {models: /elsewhere}",
    "serve: {kernel_cache: /elsewhere}",
    "serve: {port: 1234}",
    "serve: {tls_cert: /elsewhere}",
    "preStopSeconds: -1",
    "ports: {grpc: 0}",
    "ports: {grpc: 70000}",
    "ports: {grpc: 9090, metrics: http}",
    "tls: {clientCA: true}",
    "tokens: {secret: logitsieve-tokens}",
    "serve: {admin_host: 0.0.0.0}",
    "serve: {log_format: xml}",
    "serve: {batch_delay_us: 1000}",
    "tls: {secretName: logitsieve-tls}",
    "resources: {requests: {cpu: lots}}",
    "resources: {requests: 1}",
    "autoscaling: {queueMicroseconds: 0}",
    "autoscaling: {min: 0}",
    "autoscaling: {cpuPercent: 70%}",
    "disruptionBudget: {maxUnavailable: 0}",
    "disruptionBudget: {maxUnavailable: 0%}",
    "networkPolicy: {clients: [{}]}",
    "networkPolicy: {clients: [{pods: {}}]}",
    "networkPolicy: {clients: all}",
    "serviceMonitor: {interval: 15}",
    "podLabels: {decodes: true}",
]


@pytest.mark.parametrize("values", REFUSED)
def test_a_wrong_value_is_refused_by_name(values: str) -> None:
    first = next(iter(yaml.safe_load(values))).replace("tokens", "tls")  # what tokens need
    with pytest.raises(HelmError, match=first):
        render(values)


def test_what_is_not_said_is_the_default() -> None:
    with chart() as loaded:
        loaded.validate_schema({})
        assert loaded.values == VALUES


def closed(schema: dict[str, Any], path: str = "") -> list[str]:
    """Paths of objects with named properties that would let others pass."""
    properties = schema.get("properties", {})
    found = [path] if properties and schema.get("additionalProperties") is not False else []
    return found + [at for name in properties for at in closed(properties[name], f"{path}.{name}")]


def test_every_object_is_closed() -> None:
    assert closed(SCHEMA) == []


def test_the_schema_and_the_defaults_have_the_same_names() -> None:
    assert SCHEMA["properties"].keys() - {"global"} == VALUES.keys()
    for name, value in VALUES.items():
        named = SCHEMA["properties"][name].get("properties")
        if named and name not in ("serve", "resources"):
            assert named.keys() == value.keys()


def test_serve_has_every_option_that_the_chart_does_not_set() -> None:
    options = {field.name for field in fields(ServeConfig)} - {"admin_host"}  # on loopback
    everything = "{tls: {secret: a, clientCA: true}, tokens: {secret: b}, serve: {host: null}}"
    named = SCHEMA["properties"]["serve"]["properties"].keys()
    by_chart = render(everything).options.keys() - VALUES["serve"].keys()
    assert named | by_chart == options
    assert not named & by_chart


def test_every_value_has_its_comment() -> None:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    blocks = "\n".join(lines).split("\n\n")
    assert [block for block in blocks if "#" not in block] == []
