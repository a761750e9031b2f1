"""More replicas of a shard come under load, and go when there is none."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from logitsieve.client import DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.ray.serving.conftest import Indexes
from tests.ray.serving.running import REPLICA, Deployed, processes
from tests.sharded import D
from tests.synthetic import make_hidden

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

CLIENTS, ROWS, DRAWS = 4, 500, 50
SCALED_S = 150.0  # Serve looks at half a minute, and waits as long again


def test_replicas_follow_the_load(deployed: Deployed, indexes: Indexes, kernel_cache: Path) -> None:
    whole = LocalDecoder(open_index(indexes.whole / "lm" / "1", kernel_cache=kernel_cache))
    hidden, stopping = make_hidden(ROWS, D), threading.Event()
    options: dict[str, Any] = {"head": "exact", "temperature": 1.5, "seeds": 3}
    right = whole.sample(hidden, DRAWS, **options).ids
    failed = list[str]()

    def draw() -> None:
        with DecoderClient(f"127.0.0.1:{deployed.config.port}", timeout_s=60.0) as client:
            while not stopping.is_set():
                reply = client.sample(hidden, DRAWS, **options)
                if not (reply.answer.rows_missing or np.array_equal(reply.ids, right)):
                    failed.append("other draws")

    deployed.up(replicas=1, autoscale=3)
    assert len(processes(REPLICA)) == 2
    threads = [threading.Thread(target=draw) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        end = monotonic() + SCALED_S
        while len(processes(REPLICA)) < 4 and monotonic() < end:
            sleep(1.0)
        assert len(processes(REPLICA)) >= 4
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60.0)
        deployed.up(replicas=1)
    assert failed == []
