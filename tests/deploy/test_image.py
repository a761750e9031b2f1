"""The image's virtual environment, made by the Dockerfile's own commands, and a server run from it.

test_built_image.py builds the image itself. `test_packaging` installs the same extra in every run.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.dockerfile import REPOSITORY, Stage, assignments, read
from tests.server.running import said_by
from tests.synthetic import make_softmax, write_heads

pytestmark = [pytest.mark.system, pytest.mark.exhaustive, pytest.mark.timeout(900)]
INSTALLED, WHEELS = "/opt/logitsieve", "/dist"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for the builder's file system: every RUN of it has been run here."""
    folder = tmp_path_factory.mktemp("image")
    for step in read()["builder"].all("RUN"):
        shell(folder, step)
    for script in (REPOSITORY / "deploy/image").glob("*.py"):
        shutil.copy(script, folder / INSTALLED.lstrip("/"))
    return folder


def shell(folder: Path, text: str, **arguments: str) -> str:
    """Run a line of the builder in the checkout; `arguments` stand in for the defaults of ARG."""
    defaults = assignments(" ".join(read()["builder"].all("ARG")))
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    path = f"{sys.base_prefix}/bin:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(folder)} | pip | defaults | arguments
    for inside in (INSTALLED, WHEELS):
        text = text.replace(inside, f"{folder}{inside}")
    done = subprocess.run(
        ["sh", "-c", text], cwd=REPOSITORY, env=environment, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_heavy_is_installed_and_the_rest_was_tested_together(folder: Path) -> None:
    script = (
        "import json; from importlib.metadata import distributions; "
        "print(json.dumps({d.name: d.version for d in distributions()}))"
    )
    shown = json.loads(shell(folder, f"{INSTALLED}/bin/python -c '{script}'"))
    installed = {name.lower().replace("_", "-"): version for name, version in shown.items()}
    assert {"logitsieve", "numba", "grpcio", "prometheus-client"} <= installed.keys()
    assert not installed.keys() & {"torch", "faiss-cpu", "matplotlib", "pip", "pytest"}
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: installed[name] for name in pinned.keys() & installed.keys()} == {
        name: pinned[name] for name in pinned.keys() & installed.keys()
    }


def test_what_is_installed_is_compiled_and_the_extra_comes_on_request(folder: Path) -> None:
    compiled = (folder / INSTALLED.lstrip("/")).rglob("logitsieve/server/__pycache__/app.*.pyc")
    assert list(compiled)
    step = read()["builder"].all("RUN")[-1].replace(" install ", " install --dry-run ")
    assert "Would install" not in shell(folder, step)
    assert "faiss-cpu-" in shell(folder, step, EXTRAS="faiss")


def test_it_serves_by_the_images_own_command(folder: Path, tmp_path: Path) -> None:
    models, cache, runtime = tmp_path / "models", tmp_path / "cache", read()["runtime"]
    write_heads(models / "demo" / "1", make_softmax())
    cache.mkdir()
    options = runtime.words("CMD")
    options[options.index("--models") + 1] = str(models)
    options[options.index("--kernel-cache") + 1] = str(cache)
    ports = [word for port in ("port", "metrics-port", "admin-port") for word in (f"--{port}", "0")]
    home = f"{folder}{INSTALLED}"
    environment = environment_of(runtime, home) | {"TMPDIR": str(cache)}
    command = [word.replace(INSTALLED, home) for word in runtime.words("ENTRYPOINT")]
    with subprocess.Popen(
        [f"{home}/bin/{command[0]}", *command[1:], *options, *ports],
        env=environment, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            found = said_by(server, r"metrics at http://[^:]+:(\d+)/")
            probe = [f"{home}/bin/python", str(REPOSITORY / "deploy" / "image" / "probe.py")]
            for page in ("healthz", "readyz"):
                url = f"http://127.0.0.1:{found[1]}/{page}"
                assert subprocess.run([*probe, url], env=environment, check=False).returncode == 0
            server.send_signal(signal.SIGTERM)
            rest = server.communicate(timeout=60)[1]
            assert server.returncode == 0, rest
            assert "Traceback" not in rest
        finally:
            server.kill()
    # What came with it is what it runs: this processor compiled nothing, if it is of a kind there.
    assert not list(cache.glob("kernels-*"))


def environment_of(stage: Stage, home: str) -> dict[str, str]:
    return {name: value.replace(INSTALLED, home) for name, value in stage.environment.items()}
