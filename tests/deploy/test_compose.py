"""deploy/compose.yaml: two servers that share a folder of indexes, what watches them, and nothing
open to others.
"""

import re
from fnmatch import fnmatch
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import REPOSITORY, read

DEPLOY = REPOSITORY / "deploy"
COMPOSE, GPU, PROMETHEUS = (
    yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))
    for path in ("compose.yaml", "compose.gpu.yaml", "prometheus/prometheus.yml")
)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = {name: service for name, service in SERVICES.items() if name.startswith("logitsieve")}
RUNTIME = read()["runtime"]
OPTIONS = dict(zip(RUNTIME.words("CMD")[::2], RUNTIME.words("CMD")[1::2], strict=True))


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Where -> (from where, whether it can be written)."""
    found = [re.match(r"(.+?):(/.+?)(:ro)?$", text) for text in service["volumes"]]
    return {part[2]: (part[1], part[3] is None) for part in found if part}


@pytest.mark.parametrize("service", SERVICES.values(), ids=list(SERVICES))
def test_every_service_is_locked_down(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] == 256
    assert re.fullmatch(r"\$\{MEMORY:-4g\}|[12]g", service["mem_limit"])
    assert service["healthcheck"]["test"][0] == "CMD"
    assert not {"privileged", "cap_add", "network_mode", "pid", "user"} & service.keys()
    writable = [source for source, written in mounts(service).values() if written]
    assert writable or service is SERVICES["proxy"]
    assert set(writable) <= COMPOSE["volumes"].keys()
    # An image names its version and no host.
    assert re.fullmatch(r"logitsieve|[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"])


def test_servers_share_the_models_and_no_cache_nor_port() -> None:
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    ports = [port.replace("${PUBLIC:-127.0.0.1}", "127.0.0.1") for port in ports]
    published = [re.fullmatch(r"127\.0\.0\.1:(\d+):\d+", port) for port in ports]
    assert len({found[1] for found in published if found}) == len(ports) == len(SERVICES)
    first, second = (mounts(service) for service in SERVERS.values())
    models, cache = OPTIONS["--model-repository"], OPTIONS["--kernel-cache"]
    assert first.keys() == second.keys() == {models, cache}
    assert first[models] == second[models] == ("${MODELS:-../models}", False)
    assert first[cache] != second[cache]


@pytest.mark.parametrize("server", SERVERS.values(), ids=list(SERVERS))
def test_servers_run_what_the_image_says(server: dict[str, Any]) -> None:
    assert not {"command", "entrypoint"} & server.keys()
    assert (DEPLOY / server["build"]["context"]).resolve() == REPOSITORY
    health = server["healthcheck"]["test"][1:]
    assert health == [*RUNTIME.health[:-1], RUNTIME.health[-1].replace("healthz", "readyz")]
    # The default of --drain-s, and time for the rest.
    assert int(server["stop_grace_period"].removesuffix("s")) > 10 + 10


def test_on_gpus_the_same_servers_each_reserve_one() -> None:
    changed = GPU["services"]
    assert changed.keys() == SERVERS.keys()
    for server in changed.values():
        [reserved] = server["deploy"]["resources"]["reservations"]["devices"]
        assert reserved == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
        assert server["command"] == [*RUNTIME.words("CMD"), "--device", "cuda"]
        assert server["build"] == {"context": "..", "target": "gpu"}
        assert server["image"] == "logitsieve:gpu"
        # What is not said here is what compose.yaml says.
        assert server.keys() == {"image", "build", "command", "deploy"}


def test_a_proxy_before_every_server_starts_if_asked_for() -> None:
    proxy = SERVICES["proxy"]
    assert proxy["profiles"] == ["public"]
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"proxy"}
    where = proxy["environment"]
    servers = {where[name].partition(":")[0] for name in ("SERVER", "SERVER2")}
    assert servers == SERVERS.keys() == set(proxy["depends_on"])
    assert proxy["ports"][0].endswith(where["BIND"])
    assert proxy["command"][-1] in mounts(proxy)
    values = yaml.safe_load((DEPLOY / "helm/logitsieve/values.yaml").read_text(encoding="utf-8"))
    assert proxy["image"] == values["proxy"]["image"]


@pytest.mark.parametrize("name", ["prometheus", "grafana", "proxy"])
def test_what_is_mounted_is_there(name: str) -> None:
    sources = [source for source, _ in mounts(SERVICES[name]).values() if source.startswith("./")]
    assert sources
    assert [source for source in sources if not (DEPLOY / source).exists()] == []


def test_prometheus_asks_every_server_and_finds_its_rules() -> None:
    jobs = PROMETHEUS["scrape_configs"]
    groups = [group for job in jobs for group in job.get("static_configs", [])]
    targets = {target for group in groups for target in group["targets"]}
    assert {f"{name}:8080" for name in SERVERS} <= targets
    assert {target.partition(":")[0] for target in targets} <= SERVICES.keys() | {"localhost"}
    [rules] = [at for at, _ in mounts(SERVICES["prometheus"]).items() if at.endswith("/rules")]
    patterns = PROMETHEUS["rule_files"]
    at = [
        pattern if pattern.startswith("/") else f"/etc/prometheus/{pattern}" for pattern in patterns
    ]
    for file in (DEPLOY / "prometheus" / "rules").iterdir():
        assert any(fnmatch(f"{rules}/{file.name}", pattern) for pattern in at)
