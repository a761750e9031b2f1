"""All extras resolve under constraints.txt as anybody has it: no wheels or settings of a machine.

Wheels that a machine finds beside the registry may require less than those of the registry.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
CONSTRAINTS = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
PINS = dict(re.findall(r"^([\w-]+)==(.+)$", CONSTRAINTS, re.M))
SETTINGS = ("PIP_", "UV_")
UNREACHABLE = re.compile("error sending request|Failed to fetch|timed out|dns error")

pytestmark = pytest.mark.system


def resolved(python: str, *options: str) -> dict[str, str]:
    """Versions for an x86-64 Linux; skips, with what uv says, where no registry answers."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet"]
    where = ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
    done = subprocess.run(
        [*command, *where, "--constraint", "constraints.txt", *options, "pyproject.toml"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=env,
        timeout=240,
    )
    if done.returncode and UNREACHABLE.search(done.stderr):
        pytest.skip(f"no package registry can be reached: {done.stderr.strip()[:300]}")
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^([\w-]+)==(\S+)", done.stdout, re.M))


HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = sorted({"3.11", "3.12", "3.13"} - {HERE})


@pytest.mark.parametrize(
    "python", [HERE, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in OTHERS)]
)
def test_all_extras_resolve_together_and_so_each_alone(python: str) -> None:
    versions = resolved(python, "--all-extras")
    assert {"torch", "triton", "numpy", "ray", "lm-eval", "mkdocs", "atheris"} <= versions.keys()
    assert all(version == PINS.get(name, version) for name, version in versions.items())


def test_the_demo_resolves_without_torch() -> None:
    versions = resolved("3.11", "--extra", "demo")
    assert {"numba", "threadpoolctl", "jinja2"} <= versions.keys()
    assert not versions.keys() & {"torch", "faiss-cpu", "triton", "transformers", "scipy", "pandas"}
