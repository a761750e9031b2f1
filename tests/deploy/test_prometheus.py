"""A real Prometheus scrapes a real server: every rule and every query of the dashboard answers."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import yaml

from logitsieve.api.errors import InvalidRequest
from logitsieve.client import DecoderClient
from tests.deploy.monitoring import ALERTS, PROMETHEUS, QUERIES, RECORDED, RULES_FILE
from tests.server.materials import contexts, write_domains
from tests.server.running import Loop, config_for, lasting_port, running

pytestmark = [
    pytest.mark.system,
    pytest.mark.exhaustive,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here"),
]

WITHIN_S = 120.0
# What a healthy server under this load, without a GPU, has no series of.
MAY_BE_EMPTY = "requests_rejected_total", "lost_rows", "reloads", "fallback", "logitsieve_device_"


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The configuration of deploy/, with another target and no patience; yields its address."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES_FILE)]
    (job,) = (job for job in config["scrape_configs"] if job["job_name"] == "logitsieve")
    job["static_configs"] = [{"targets": [target]}]
    config["scrape_configs"] = [job]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{lasting_port()}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def ask(address: str, expression: str) -> list[Any]:
    """The samples of an instant query; AssertionError if it is refused."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=10) as response:
        answer = json.load(response)
    assert answer["status"] == "success", expression
    return list(answer["data"]["result"])


def until(condition: Callable[[], bool], what: str) -> None:
    """Another process's clock decides when: asked again until it is so."""
    deadline = monotonic() + WITHIN_S
    while monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass  # it does not listen yet
        sleep(0.2)
    raise AssertionError(f"{what}: not within {WITHIN_S:g} s")


def load(client: DecoderClient) -> None:
    """Every RPC, and an error that is the client's."""
    hidden_states = contexts(1, 64)
    for _ in range(20):
        client.topk(hidden_states, 5)
    client.score(hidden_states, [1] * 64)
    client.sample(hidden_states)
    client.beam_step(hidden_states, beams_in=1, beams_out=2)
    with pytest.raises(InvalidRequest):
        client.topk(hidden_states, 0)


def test_queries_and_alerts_answer(tmp_path: Path, loop: Loop) -> None:
    write_domains(tmp_path / "models")
    shadow = {"shadow_share": 0.05, "shadow_cpu": 1.0}
    config = config_for(tmp_path / "models", **shadow)
    with (
        running(loop, config) as run,
        prometheus(tmp_path, f"127.0.0.1:{run.server.http_port}") as address,
    ):
        load(run.client)  # series begin
        until(lambda: bool(ask(address, "logitsieve_shadow_possible_total")), "a judged row")
        for recorded in RECORDED:

            def there(name: str = recorded) -> bool:
                load(run.client)
                return any(sample["value"][1] != "NaN" for sample in ask(address, name))

            until(there, recorded)
        for title, query in QUERIES:
            expression = query.replace("$__rate_interval", "1m").replace("$model", ".+")
            found = ask(address, expression)
            assert found or any(name in query for name in MAY_BE_EMPTY), title
        for alert, rule in ALERTS.items():
            assert ask(address, rule["expr"]) == [], alert
        precision = 'model_head_k:logitsieve_precision:ratio_rate1h{head="screen", k="5"}'
        (sample,) = ask(address, precision)
        assert sample["metric"]["model"] == "demo"
        assert float(sample["value"][1]) > 0.9
