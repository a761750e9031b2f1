"""The image: built from the Dockerfile, run read-only as its user, asked, watched and stopped.

`make test-image` prints its size and times. No container engine or hub is needed: buildah builds it
over a base that debootstrap makes, and it runs in namespaces of its own, as an engine would do. As
root on Debian, after `apt-get install buildah debootstrap`.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from logitsieve.index import open_index
from logitsieve.server import ServeConfig
from tests.deploy.dockerfile import REPOSITORY, read
from tests.server.running import write_whole
from tests.synthetic import make_hidden

TOOLS = ("buildah", "debootstrap", "ip", "nsenter", "setpriv", "unshare")
pytestmark = [
    pytest.mark.system,
    pytest.mark.exhaustive,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
        reason=f"root and {', '.join(TOOLS)} are needed",
    ),
]
TAG = "logitsieve:test"
SUITE, PACKAGES = "bookworm", "ca-certificates,python3,python3-pip,python3-venv"  # Python 3.11
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # with a proxy's, if there is one
BEYOND_DRAIN_S = 3

# root models cache user: what an engine mounts, and nothing else can be written.
MOUNTS = """
set -e
ip link set lo up
mount --bind "$1" "$1"
mount --bind --read-only "$2" "$1/models"
mount --bind "$3" "$1/var/cache/logitsieve"
mount --rbind /proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -o remount,bind,ro "$1"
root=$1 user=$4
shift 4
exec setpriv --no-new-privs chroot --userspec="$user" "$root" "$@"
"""
ASK = """
import json, sys
from logitsieve.client import DecoderClient
with DecoderClient("127.0.0.1:50051") as client:
    client.wait_until_ready(600)
    print(json.dumps(client.topk(json.loads(sys.argv[1]), 5).ids.tolist()))
"""


INSTALLED = """
import json
from importlib.metadata import distributions
print(json.dumps({each.name.lower().replace("_", "-"): each.version for each in distributions()}))
"""


class Image(NamedTuple):
    root: Path  # its file system
    config: dict[str, Any]

    @property
    def environment(self) -> list[str]:
        return ["/usr/bin/env", "-i", *self.config["Env"]]


class Container(NamedTuple):
    image: Image
    process: subprocess.Popen[str]
    cache: Path

    def run(self, *command: str) -> str:
        """Run a command in the container, as its user."""
        user, _, group = self.image.config["User"].partition(":")
        enter = ["nsenter", f"--target={self.process.pid}", "--mount", "--net", "--root", "--wd"]
        enter += [f"--setuid={user}", f"--setgid={group}"]
        return output(*enter, *self.image.environment, *command)


def output(*command: str) -> str:
    environment = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=REPOSITORY, env=environment
    )
    return done.stdout.strip()


def make_base(name: str, folder: Path) -> None:
    """Make a base in the place of a hub's, and leave it for later runs."""
    if name in output("buildah", "images", "--format", "{{.Name}}:{{.Tag}}"):
        return
    root = folder / "base"
    options = ["--variant=minbase", f"--include={PACKAGES}"]
    output("debootstrap", *options, SUITE, str(root))
    shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    made = output("buildah", "from", "scratch")
    output("buildah", "copy", made, str(root), "/")
    output("buildah", "commit", "--rm", made, f"docker.io/library/{name}")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    make_base(read()["runtime"].base, tmp_path_factory.mktemp("image"))
    began = time.monotonic()
    output("buildah", "build", "--format=docker", "--pull-never", f"--tag={TAG}", ".")
    size = output("buildah", "images", "--format", "{{.Size}}", TAG)
    print(f"\nbuilt in {time.monotonic() - began:.0f} s: {size}")
    container = output("buildah", "from", "--pull-never", TAG)
    try:
        config = json.loads(output("buildah", "inspect", "--type=image", TAG))["Docker"]["config"]
        yield Image(Path(output("buildah", "mount", container)), config)
    finally:
        output("buildah", "rm", container)


@contextmanager
def running(image: Image, folder: Path) -> Iterator[Container]:
    """Run the image's own command over `folder`/models, with a cache that is empty."""
    cache, user = folder / "cache", image.config["User"]
    cache.mkdir()
    os.chown(cache, *map(int, user.split(":")))
    command = [*image.environment, *image.config["Entrypoint"], *image.config["Cmd"]]
    mounts = [str(path) for path in (image.root, folder / "models", cache)]
    with subprocess.Popen(
        ["unshare", "--mount", "--net", "sh", "-c", MOUNTS, "sh", *mounts, user, *command],
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield Container(image, process, cache)
        finally:
            process.kill()


def test_it_answers_is_healthy_and_stops(image: Image, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    index, hidden_states = write_whole(tmp_path / "models", "demo"), make_hidden(3)
    expected = open_index(index).head("screen").topk(hidden_states, 5).ids
    began = time.monotonic()
    with running(image, tmp_path) as container:
        process, log = container.process, []
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line)
            if "metrics at" in line:
                break
        ids = json.loads(container.run("python", "-c", ASK, json.dumps(hidden_states.tolist())))
        print(f"first answer after {time.monotonic() - began:.1f} s")
        np.testing.assert_array_equal(ids, expected)
        container.run(*image.config["Healthcheck"]["Test"][1:])
        for folder in ("/models", "/opt/logitsieve", "/tmp", "/"):
            container.run("sh", "-c", f"! touch {folder}/written 2>/dev/null")
        itself = Path(f"/proc/{process.pid}")
        assert itself.stat().st_uid == int(image.config["User"].partition(":")[0])
        suited = "NUMBA_CPU_NAME=" in (itself / "environ").read_text()
        stopping = time.monotonic()
        process.send_signal(signal.Signals[image.config["StopSignal"]])
        log.append(process.communicate(timeout=ServeConfig.drain_s + BEYOND_DRAIN_S)[1])
        print(f"stopped {time.monotonic() - stopping:.1f} s after {image.config['StopSignal']}")
    assert process.returncode == 0, log
    assert "Traceback" not in "".join(log)
    # On a processor that a kind of its kernels suits nothing was compiled.
    assert list(container.cache.glob("kernels-*")) == [] or not suited


def test_nothing_heavy_is_installed_and_the_rest_was_tested_together(image: Image) -> None:
    python = ["chroot", str(image.root), *image.environment, "python"]
    installed = json.loads(output(*python, "-c", INSTALLED))
    assert {"logitsieve", "numba", "grpcio", "prometheus-client"} <= installed.keys()
    assert not installed.keys() & {"torch", "faiss-cpu", "matplotlib", "pip", "pytest"}
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    both = pinned.keys() & installed.keys()
    assert {name: installed[name] for name in both} == {name: pinned[name] for name in both}
    compiled = (image.root / "opt/logitsieve").rglob("logitsieve/server/__pycache__/app.*.pyc")
    assert list(compiled)
