"""The Dockerfile's steps, run without a container engine; needs root on Linux.

A stage's file system is an overlay of this machine's root in a mount namespace of its own, with
this Python at /usr/local, where python:slim has it, and without the checkout. A container is that
file system, read-only, in a network namespace, as the image's user and without capabilities.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.dockerfile import REPOSITORY, Stage, assignments, read

CACHE = "/var/cache/logitsieve"
STAGES = ("builder", "runtime")  # what the image without a GPU is made of
BUILD_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

HOLD = """
set -e
mount -t tmpfs tmpfs "$1"
for stage in $2; do
    mkdir -p "$1/$stage/upper" "$1/$stage/work" "$1/$stage/root"
    mount -t overlay overlay "$1/$stage/root" \
        -o "lowerdir=/,upperdir=$1/$stage/upper,workdir=$1/$stage/work"
    cd "$1/$stage/root"
    mount --bind /proc proc
    mount --bind /dev dev
    mount -t tmpfs tmpfs ".$4"
    if [ "$3" != /usr/local ]; then mount --bind "$3" usr/local; chroot . ldconfig; fi
done
echo ready
exec cat
"""

START = """
set -e
cd "$1"
ip link set lo up
mount --bind "$2" models
if [ "$3" ]; then mount --bind "$3" ./var/cache/logitsieve; fi
mount -o remount,bind,ro "$1"
mount -o remount,bind,ro usr/local
mount -o remount,bind,ro "$1/models"
shift 3
exec "$@"
"""


def ready(process: subprocess.Popen[str], line: str) -> list[str]:
    """What a process says, up to the line that begins so; AssertionError where it ends before."""
    assert process.stdout is not None
    said: list[str] = []
    for got in process.stdout:
        said.append(got)
        if got.startswith(line):
            return said
    raise AssertionError("".join(said))


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Container:
    """A running server: `process` is its own, stderr joined to stdout."""

    process: subprocess.Popen[str]
    inside: list[str]  # a command that follows this is run in the container

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker exec`; whatever it exits with."""
        words = ["nsenter", "--target", str(self.process.pid), "--mount", "--net", *self.inside]
        return subprocess.run(
            [*words, *command], capture_output=True, text=True, timeout=120, check=False
        )

    def stop(self) -> tuple[int, str]:
        """SIGTERM; the exit status, and what was said since."""
        self.process.send_signal(signal.SIGTERM)
        rest = self.process.communicate(timeout=120)[0]
        return self.process.returncode, rest


class Image:
    """A Dockerfile's stages, once `build` has run; `holder` is a process in their namespace."""

    def __init__(self, folder: Path, holder: subprocess.Popen[str]) -> None:
        self._folder = folder
        self._enter = ["nsenter", "--target", str(holder.pid), "--mount"]
        self.builder, self.runtime = (read()[name] for name in STAGES)

    def build(self) -> None:
        """Every step of both stages that changes files."""
        for stage in (self.builder, self.runtime):
            folder = "/"
            for name, text in stage.steps:
                if name == "WORKDIR":
                    folder = text
                elif name == "RUN":
                    self.shell(stage, text, folder)
                elif name == "COPY":
                    self._copy(stage, text.split(), folder)

    def root(self, stage: str) -> Path:
        return self._folder / stage / "root"

    def shell(self, stage: Stage, text: str, folder: str = "/", **arguments: str) -> str:
        """Run a line of shell as root; `arguments` stand in for the defaults of ARG."""
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        known = {"PATH": BUILD_PATH} | pip | assignments(" ".join(stage.all("ARG"))) | arguments
        line = f"cd {shlex.quote(folder)} && {text}"
        return run(*self._enter, *_chroot(self.root(stage.name), known), "sh", "-c", line)

    @contextmanager
    def container(self, models: Path, cache: Path | None) -> Iterator[Container]:
        """The image's ENTRYPOINT and CMD over `models`; without `cache` nothing can be written."""
        root, stage = self.root(self.runtime.name), self.runtime
        user = [f"--reuid={(uid := stage.one('USER').partition(':')[0])}", f"--regid={uid}"]
        drop = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        inside = [*_chroot(root, stage.environment), "setpriv", *user, *drop]
        if cache is not None:
            os.chown(cache, int(uid), int(uid))
        start = ["sh", "-c", START, "start", str(root), str(models), str(cache or "")]
        command = [*inside, *stage.words("ENTRYPOINT"), *stage.words("CMD")]
        words = [*self._enter, "unshare", "--mount", "--net", *start, *command]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield Container(process, inside)
            finally:
                process.kill()

    def _copy(self, stage: Stage, words: list[str], folder: str) -> None:
        """COPY of files into a folder, or of one file or folder under a name."""
        source = REPOSITORY
        if words[0].startswith("--from="):
            source = self.root(words.pop(0).removeprefix("--from="))
        *names, target = words
        for name in names:
            to = Path(folder, target, Path(name).name if target.endswith("/") else "")
            within = self.root(stage.name) / to.relative_to("/")
            run(*self._enter, "mkdir", "--parents", within.parent)
            run(*self._enter, "cp", "--archive", source / name.lstrip("/"), within)


def _chroot(root: Path, environment: dict[str, str]) -> list[str]:
    pairs = [f"{name}={value}" for name, value in environment.items()]
    return ["chroot", str(root), "/usr/bin/env", "--ignore-environment", *pairs]


@contextmanager
def built(folder: Path) -> Iterator[Image]:
    """The image; all that it wrote is gone afterwards."""
    arguments = [str(folder), " ".join(STAGES), sys.base_prefix, str(REPOSITORY)]
    command = ["unshare", "--mount", "sh", "-c", HOLD, "hold", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as holder:
        try:
            ready(holder, "ready")
            image = Image(folder, holder)
            image.build()
            yield image
        finally:
            holder.kill()
