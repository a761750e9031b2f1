"""The rules of Prometheus: they read what the server has; every alert has its section."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from logitsieve.cli.app import COMMANDS
from logitsieve.server.metrics import Devices, Metrics
from logitsieve.server.precision import PrecisionMetrics
from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.monitoring import ALERTS, PROMETHEUS, QUERIES, RECORDED, RULES, names

RUNBOOK = (REPOSITORY / "docs" / "runbook.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
PAGE = (REPOSITORY / "docs" / "monitoring.md").read_text(encoding="utf-8")


def exported() -> set[str]:
    """Every series of a server, by the names that queries have for them."""
    metrics = Metrics()
    PrecisionMetrics(metrics.registry, list)
    Devices("cpu", metrics.registry)
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(metrics.text().decode())
    }


def test_what_is_read_is_there_or_recorded_and_what_is_recorded_is_read() -> None:
    series = set().union(*(names(rule["expr"]) for rule in RULES), *(names(e) for _, e in QUERIES))
    assert series - exported() == set()
    expressions = [*(rule["expr"] for rule in ALERTS.values()), *(e for _, e in QUERIES)]
    read = {name for e in expressions for name in re.findall(r"\w+:logitsieve_\w+:\w+", e)}
    assert read <= RECORDED.keys()
    assert {name for name in RECORDED if name not in PAGE} <= read
    assert SECTIONS.keys() == ALERTS.keys()


def test_the_objective_reads_what_there_is() -> None:
    expressions = re.findall(r"^    .*", PAGE.partition("### An objective")[2], re.MULTILINE)
    read = set().union(*map(names, expressions))
    assert read - exported() == set()
    assert len(read) == 2


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_its_section(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{alert.lower()}"
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    section = SECTIONS[alert]
    for part in ("**Means**: ", "**Look at** ", "**Do**"):
        assert part in section
    assert names(section) - exported() == set()
    lines = re.findall(r"^    .*", section, re.MULTILINE)
    assert lines
    recorded = {name for line in lines for name in re.findall(r"\w+:logitsieve_\w+:\w+", line)}
    assert recorded <= RECORDED.keys()
    for command in re.findall(r"^    on logitsieve (\w+)", section, re.MULTILINE):
        assert command in COMMANDS


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_the_configuration_is_taken_and_alerts_fire_when_they_must_and_not_before() -> None:
    promtool("check", "config", "prometheus.yml")
    tests = sorted((PROMETHEUS / "tests").glob("*.yml"))
    promtool("test", "rules", *tests)
    text = "".join(test.read_text(encoding="utf-8") for test in tests)
    assert [alert for alert in ALERTS if f"alertname: {alert}" not in text] == []
