"""A disk that is full at any moment: what was there stays, nothing half written is ever loaded,
what fails names the file, and a server answers without its caches.

RLIMIT_FSIZE stands for it, in a process of its own: no file may grow beyond so many bytes.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from logitsieve.index import open_index, verify_index
from tests.server.running import START_S, write_model, write_whole
from tests.synthetic import make_hidden

pytestmark = pytest.mark.system  # processes of their own
EXHAUSTIVE = pytest.mark.exhaustive

# What is done under the limit; `limit()` puts it in force.
BEGINNING = """
import json, resource, sys
from pathlib import Path
import numpy as np
folder, kernels, most = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
def told(work):
    limit()
    try:
        work()
    except OSError as error:
        print(json.dumps([error.strerror, error.filename]))
        raise SystemExit(3)
"""
WRITE = """
from tests.server.running import write_whole
told(lambda: write_whole(folder, "demo"))
"""
BUILD = """
import torch
from logitsieve.index_builder import BuildConfig, build
from logitsieve.kernels.compile import use_cache
from tests.synthetic import make_hidden, make_softmax
softmax = make_softmax(60, 8)
config = BuildConfig(clusters_tried=(4,), rounds=1, steps=5, batch_rows=64)
use_cache(kernels)
told(lambda: build(
    softmax.weight, softmax.bias, make_hidden(400, 8), folder / "demo" / "1",
    heads=["full", "screen"], config=config,
))
"""
CAPTURE = """
import torch
from logitsieve.index_builder.capture import CaptureConfig, capture
model = torch.nn.Linear(8, 50)
told(lambda: capture(
    model, [torch.ones(16, 8)] * 8, folder / "captured", config=CaptureConfig(max_rows=64)
))
"""
ANSWER = """
from logitsieve.index import open_index
from tests.synthetic import make_hidden
limit()
head = open_index(folder / "demo" / "1", kernel_cache=kernels).head("full")
print(json.dumps(head.topk(make_hidden(4), 3).ids.tolist()))
"""
PRUNE = """
from logitsieve.cli.prune import prune
limit()
prune(folder / "demo", keep=1)
"""


def limited(
    script: str, folder: Path, most: int, kernels: Path | None = None
) -> subprocess.CompletedProcess[str]:
    arguments = [str(folder), str(kernels or folder.parent / "kernels"), str(most)]
    command = [sys.executable, "-c", BEGINNING + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)


def assert_refused(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    """The name of the file that did not fit."""
    assert done.returncode == 3, done.stderr
    reason, file = json.loads(done.stdout.splitlines()[-1])
    assert reason == "File too large"
    assert Path(file).is_relative_to(folder)
    return Path(file).name


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.mark.parametrize(
    "file",
    [
        "softmax.safetensors",
        *(pytest.param(name, marks=EXHAUSTIVE) for name in ("manifest.json", "sketch.safetensors")),
    ],
)
def test_an_index_that_does_not_fit(folder: Path, tmp_path: Path, file: str) -> None:
    whole = write_whole(tmp_path, "whole")
    most = (whole / file).stat().st_size - 1
    larger = {path.name for path in whole.iterdir() if path.stat().st_size > most}
    assert assert_refused(limited(WRITE, folder, most), folder) in larger
    assert left(folder) == set()


@pytest.mark.parametrize(
    ("script", "most"),
    [
        *((BUILD, 2500), pytest.param(BUILD, 0, marks=EXHAUSTIVE)),
        *((CAPTURE, 1300), pytest.param(CAPTURE, 0, marks=EXHAUSTIVE)),
    ],
    ids=["build", "no build", "capture", "no capture"],
)
def test_a_failure_leaves_nothing(folder: Path, kernel_cache: Path, script: str, most: int) -> None:
    assert_refused(limited(script, folder, most, kernel_cache), folder)
    assert left(folder) == set()


def test_old_versions_are_removed_from_a_full_disk(folder: Path) -> None:
    for version in (1, 2):
        write_model(folder, version=version)
    assert limited(PRUNE, folder, 0).returncode == 0
    assert {path.name for path in (folder / "demo").iterdir()} == {"2"}
    assert verify_index(folder / "demo" / "2")


@EXHAUSTIVE  # kernels are compiled twice; tests of the cache have a folder that cannot be written
@pytest.mark.parametrize("most", [0, 3000])
def test_a_cache_that_does_not_fit_is_done_without(folder: Path, tmp_path: Path, most: int) -> None:
    """Digests that were verified, and machine code: what is not kept is made again."""
    write_model(folder)
    expected = open_index(folder / "demo" / "1").head("full").topk(make_hidden(4), 3).ids
    done = limited(ANSWER, folder, most)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(json.loads(done.stdout), expected)
    assert done.stderr.count("kernels are compiled again") == 1
    cache = tmp_path / "kernels"
    assert not [name for name in left(cache) if ".tmp" in name or ".verified" in name]
    assert all(path.stat().st_size <= most for path in cache.rglob("*") if path.is_file())
    again = limited(ANSWER, folder, resource.RLIM_INFINITY)
    assert again.returncode == 0, again.stderr
    np.testing.assert_array_equal(json.loads(again.stdout), expected)
