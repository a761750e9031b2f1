"""`logitsieve ray` over the deployment that the other tests use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logitsieve.cli.app import app
from tests.ray.serving.running import Deployed

pytestmark = pytest.mark.ray


def test_status_shows_ingresses_versions_and_shards(deployed: Deployed) -> None:
    shown = CliRunner().invoke(app, ["ray", "status", "--json"])
    assert shown.exit_code == 0, shown.output
    facts = json.loads(shown.stdout)
    [ingress] = facts["ingresses"]
    assert (ingress["name"], ingress["port"]) == ("ingress-1", deployed.config.port)
    assert [(each["name"], each["state"]) for each in ingress["versions"]] == [("lm", "available")]
    assert [each["replicas"] for each in facts["shards"]] == [1, 1]
    text = CliRunner().invoke(app, ["ray", "status"]).stdout
    for word in ("ingress-1", "lm@1", "RUNNING"):
        assert word in text


def test_an_address_where_nothing_listens_is_named() -> None:
    """In a process of its own: this one is connected already."""
    program = Path(sys.executable).with_name("logitsieve")
    for address in ("127.0.0.1:1", "nowhere"):
        command = [str(program), "ray", "status", "--address", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert "address: got" in done.stderr


def test_up_refuses_what_makes_no_sense(deployed: Deployed) -> None:
    models = ("--models", str(deployed.models))
    for options, reason in (
        (("--port", "0"), "port: got 0"),
        (("--replicas", "3", "--autoscale", "2"), "autoscale: got 2, allowed: 0, or an integer"),
        (("--serve-on", "nowhere"), "serve_on: got 'nowhere'"),
    ):
        refused = CliRunner().invoke(app, ["ray", "up", *models, *options])
        assert refused.exit_code == 2, refused.output
        assert reason in refused.stderr
