"""A deployment for tests, its processes, and clients that keep it busy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from logitsieve.client import AdminClient, DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.server.config import ServeConfig
from tests.ray.conftest import INGRESS
from tests.server.running import lasting_port
from tests.sharded import D
from tests.synthetic import make_hidden

WAIT_S = 60.0
REPLICA = "ServeReplica:logitsieve-shard"


class Deployed:
    """A deployment with a replica of each shard, and its clients."""

    def __init__(self, models: Path, kernel_cache: Path) -> None:
        first = lasting_port()
        self.models = models
        self.config = ServeConfig(
            port=first,
            metrics_port=first + 1,
            admin_port=first + 2,
            kernel_cache=kernel_cache,
            shadow_share=0.0,
            reflection=True,
        )
        self.up()
        self.client = DecoderClient(f"127.0.0.1:{first}", timeout_s=10.0)
        self.admin = AdminClient(f"127.0.0.1:{first + 2}", timeout_s=WAIT_S)

    def up(self, **changes: Any) -> Any:
        from logitsieve.ray.serving.deployment import deploy

        options: dict[str, Any] = {"cpus": 0.1, "serve_on": INGRESS}
        return deploy(self.models, server=self.config, missing="answer", **options | changes)


def processes(name: str) -> list[int]:
    """Ids of the processes of this Ray whose title begins so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
            if title.startswith(f"ray::{name}") and os.getpid() in ancestors(int(folder.name)):
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        process = int(stat.rpartition(")")[2].split()[1])
        found.append(process)
    return found


def until(true: Callable[[], bool]) -> None:
    end = monotonic() + WAIT_S
    while not true():
        assert monotonic() < end
        sleep(0.1)


class Load:
    """Clients that ask one after the other until `stop`; every answer is compared."""

    def __init__(self, deployed: Deployed, whole: LocalDecoder, clients: int = 2) -> None:
        self.answered = self.wrong = self.unproven = 0
        self.failed = list[str]()
        self._hidden = make_hidden(64, D, seed=5)
        self._right = whole.topk(self._hidden, 5, head="certified")
        self._address = f"127.0.0.1:{deployed.config.port}"
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, row: int) -> None:
        with DecoderClient(self._address, timeout_s=10.0) as client:
            while not self._stopping.is_set():
                row = (row + 7) % len(self._hidden)
                try:
                    reply = client.topk(self._hidden[row], 5, model="lm", head="certified")
                except Exception as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                    continue
                same = np.array_equal(reply.ids[0], self._right.ids[row])
                self.answered += 1
                self.wrong += bool(reply.answer.exact[0] and not same)
                self.unproven += not reply.answer.exact[0]

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(WAIT_S)
