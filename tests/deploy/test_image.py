"""The image's steps and its server: as another user, on a file system that is read-only."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from logitsieve.index import HeadEntry, write_index
from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.image import CACHE, Container, Image, built, ready
from tests.synthetic import make_softmax

ROOT = os.geteuid() == 0 and all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1800),  # kernels are compiled twice
    pytest.mark.skipif(not ROOT, reason="needs root on Linux, util-linux and iproute2"),
]
COMPILED_ANEW = "kernels are compiled anew at every start"
TEMPORARY = "import tempfile; print(tempfile.gettempdir())"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with built(tmp_path_factory.mktemp("image")) as image:
        yield image


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    folder.chmod(0o755)
    heads = {"exact": HeadEntry()}
    where = folder / "demo" / "1"
    write_index(where, softmax=make_softmax(), parts={}, heads=heads, default_head="exact")
    return folder


def answers(container: Container, path: str) -> bool:
    probe = ("python", "/opt/logitsieve/probe.py", f"http://127.0.0.1:9090{path}")
    return container.run(*probe).returncode == 0


def asked(container: Container) -> str:
    """The state of the one model, by the client that is in the image."""
    shown = container.run("logitsieve", "query", "--address", "127.0.0.1:50051", "--json")
    assert shown.returncode == 0, shown.stderr
    [model] = json.loads(shown.stdout)
    return str(model["state"])


def test_nothing_heavy_is_installed_and_the_rest_was_tested_together(image: Image) -> None:
    script = (
        "import json; from importlib.metadata import distributions; "
        "print(json.dumps({d.name: d.version for d in distributions()}))"
    )
    shown = json.loads(image.shell(image.runtime, f"/opt/logitsieve/bin/python -c '{script}'"))
    installed = {name.lower().replace("_", "-"): version for name, version in shown.items()}
    assert {"logitsieve", "numba", "grpcio", "prometheus-client"} <= installed.keys()
    assert not installed.keys() & {"torch", "faiss-cpu", "matplotlib", "pip", "pytest"}
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: installed[name] for name in pinned.keys() & installed.keys()} == {
        name: pinned[name] for name in pinned.keys() & installed.keys()
    }


def test_what_is_installed_is_compiled_to_bytecode(image: Image) -> None:
    found = image.shell(image.runtime, "find /opt/logitsieve -path '*/logitsieve/server/*.pyc'")
    assert "/app.cpython" in found


def test_the_extra_is_installed_on_request(image: Image) -> None:
    step = image.builder.all("RUN")[-1].replace(" install ", " install --dry-run ")
    assert "Would install" not in image.shell(image.builder, step, "/src")
    assert "faiss-cpu-" in image.shell(image.builder, step, "/src", EXTRAS="faiss")


def test_it_serves_where_the_cache_alone_can_be_written(
    image: Image, models: Path, tmp_path: Path
) -> None:
    cache, seeded = tmp_path / "cache", tmp_path / "seeded"
    cache.mkdir()
    with image.container(models, cache) as container:
        said = "".join(ready(container.process, "gRPC at"))
        assert "gRPC at 0.0.0.0:50051, metrics at http://0.0.0.0:9090/metrics" in said
        assert COMPILED_ANEW not in said
        assert container.run(*image.runtime.health).returncode == 0
        assert answers(container, "/readyz")
        assert asked(container) == "available"
        for folder in ("/", "/tmp", "/dev/shm", "/models", "/opt/logitsieve", "/usr/local"):
            assert container.run("touch", f"{folder}/written").returncode == 1
        assert container.run("id", "--user").stdout.strip() == "10001"
        assert container.run("python", "-c", TEMPORARY).stdout.strip() == CACHE
        leaves_quietly(container)
    compiled = times(cache)
    assert compiled
    shutil.copytree(cache, seeded)
    with image.container(models, seeded) as container:
        ready(container.process, "gRPC at")
        leaves_quietly(container)
    assert times(seeded) == compiled


def leaves_quietly(container: Container) -> None:
    status, said = container.stop()
    assert status == 0, said
    assert "Traceback" not in said


def times(cache: Path) -> dict[Path, int]:
    """When each compiled kernel was written, by its name within the cache."""
    files = cache.rglob("*.nb[ic]")
    return {path.relative_to(cache): path.stat().st_mtime_ns for path in files}


def test_it_serves_where_nothing_can_be_written_and_says_so_once(
    image: Image, models: Path
) -> None:
    with image.container(models, None) as container:
        said = "".join(ready(container.process, "gRPC at"))
        assert len(re.findall(COMPILED_ANEW, said)) == 1
        assert container.run("touch", f"{CACHE}/written").returncode == 1
        assert container.run(*image.runtime.health).returncode == 0
        assert asked(container) == "available"
        leaves_quietly(container)


def test_the_health_check_fails_where_nobody_listens(image: Image) -> None:
    line = (
        f"! /opt/logitsieve/bin/{image.runtime.health[0]} /opt/logitsieve/probe.py http://[::1]:1/"
    )
    image.shell(image.runtime, line)
