"""The rules and the dashboard, as tests read them."""

import json
import re
from typing import Any

import yaml

from tests.deploy.dockerfile import REPOSITORY

PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
GRAFANA = REPOSITORY / "deploy" / "grafana"
RULES_FILE = PROMETHEUS / "rules" / "logitsieve.yml"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
DASHBOARD: dict[str, Any] = json.loads(
    (GRAFANA / "dashboards" / "logitsieve.json").read_text(encoding="utf-8")
)
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES: list[tuple[str, str]] = [
    (panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]
]
SERIES = re.compile(r"(?<![\w:])logitsieve_\w+")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def names(expression: str) -> set[str]:
    """The series of the server that an expression reads, histograms without their suffix."""
    return {SUFFIX.sub("", name) for name in SERIES.findall(expression)}
