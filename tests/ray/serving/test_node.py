"""A node that is lost under load: a second one on this machine, whose processes are all killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.ray.conftest import STORE_BYTES
from tests.ray.serving.conftest import Indexes
from tests.ray.serving.running import REPLICA, Deployed, Load, ancestors, processes, until

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]


def descendants(process: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if process in ancestors(int(folder.name)):
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def test_a_killed_node_fails_no_call(
    deployed: Deployed, indexes: Indexes, kernel_cache: Path
) -> None:
    ray = pytest.importorskip("ray")
    whole = LocalDecoder(open_index(indexes.whole / "lm" / "1", kernel_cache=kernel_cache))
    program = str(Path(sys.executable).with_name("ray"))
    address = ray.get_runtime_context().gcs_address
    options = ("--num-cpus=4", f"--object-store-memory={STORE_BYTES}", "--block")
    command = [program, "start", f"--address={address}", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as node:
        until(lambda: sum(each["Alive"] for each in ray.nodes()) == 2)
        deployed.up(replicas=3)
        theirs = [each for each in processes(REPLICA) if node.pid in ancestors(each)]
        assert theirs
        load = Load(deployed, whole)
        until(lambda: load.answered > 50)
        for process in [*descendants(node.pid), node.pid]:
            os.kill(process, signal.SIGKILL)
        asked = load.answered
        until(lambda: load.answered > asked + 200)
        load.stop()
        assert load.failed == []
        assert load.wrong == 0
    until(lambda: len(processes(REPLICA)) == 6)


def test_down_leaves_nothing(deployed: Deployed) -> None:
    made = pytest.importorskip("logitsieve.ray.serving.deployment")
    made.remove()
    status = made.status_of()
    assert (status.ingresses, status.shards) == ({}, [])
    until(lambda: not processes(REPLICA))
    deployed.up()
