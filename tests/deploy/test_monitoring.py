"""What compose mounts into Prometheus and Grafana is there, and names what compose runs."""

from fnmatch import fnmatch
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.test_compose import SERVERS, SERVICES, mounts

DEPLOY = REPOSITORY / "deploy"


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_what_is_mounted_is_there(name: str) -> None:
    sources = [source for source, _ in mounts(SERVICES[name]).values() if source.startswith("./")]
    assert sources
    assert [source for source in sources if not (DEPLOY / source).exists()] == []


def test_prometheus_asks_every_server_and_finds_its_rules() -> None:
    jobs = read("prometheus/prometheus.yml")["scrape_configs"]
    groups = [group for job in jobs for group in job.get("static_configs", [])]
    targets = {target for group in groups for target in group["targets"]}
    assert {f"{name}:9090" for name in SERVERS} <= targets
    assert {target.partition(":")[0] for target in targets} <= SERVICES.keys() | {"localhost"}
    [rules] = [at for at, _ in mounts(SERVICES["prometheus"]).items() if at.endswith("/rules")]
    patterns = read("prometheus/prometheus.yml")["rule_files"]
    at = [
        pattern if pattern.startswith("/") else f"/etc/prometheus/{pattern}" for pattern in patterns
    ]
    for file in (DEPLOY / "prometheus" / "rules").iterdir():
        assert any(fnmatch(f"{rules}/{file.name}", pattern) for pattern in at)
