"""Calls of a shard whose replicas fail or stay silent, over a handle that does as it is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from logitsieve.api.errors import InvalidRequest, ShardUnavailable
from logitsieve.heads.sharded import Shard
from logitsieve.index.manifest import ShardOf
from logitsieve.utils.deadline import ending_by

pytestmark = pytest.mark.ray

PAGE = (Path(__file__).parents[3] / "docs" / "ray.md").read_text(encoding="utf-8")
DIGEST = "0" * 64
OWN = ShardOf(first=256, vocab_size=1000, digest=DIGEST, softmax_sha256=DIGEST, norm=1.0, bias=0.0)


class Handle:
    """Its replies are those of a list, one for each call; None never comes."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.asked = list(replies), list[tuple[str, Any]]()
        self.ask = SimpleNamespace(remote=self._remote)

    def _remote(self, method: str, args: Any) -> Any:
        self.asked.append((method, args))
        reply = self.replies.pop(0)

        def result(timeout_s: float) -> Any:
            if reply is None:
                sleep(timeout_s)
                raise TimeoutError
            if isinstance(reply, Exception):
                raise reply
            return reply

        return SimpleNamespace(result=result, cancel=lambda: None)


def remote(
    handle: Handle, most_s: float = 0.2, share: float = 1.0
) -> tuple[Any, Callable[[], str]]:
    """A shard of 300 rows by this handle, and the text of its metrics."""
    calls = pytest.importorskip("logitsieve.ray.serving.metrics")
    made = pytest.importorskip("logitsieve.ray.serving.remote")
    metrics, registry = calls.ShardMetrics(), CollectorRegistry()
    metrics.register(registry)
    counts = calls.ShardCalls(metrics, "lm", 1, 2)
    shard = made.RemoteShard(handle, OWN, (300, 8), made.Patience(most_s, share), counts)
    return shard, lambda: generate_latest(registry).decode()


def reply(value: Any = None, **more: Any) -> Any:
    return pytest.importorskip("logitsieve.ray.serving.replica").Reply("r1", value, **more)


def test_it_has_the_methods_and_numbers_of_a_shard() -> None:
    shard, _ = remote(Handle())
    own = {"part_of", "begin", "warm", "norms", "remote"}
    public = {name for name in vars(Shard) if not name.startswith("_")} - own
    assert public == set(pytest.importorskip("logitsieve.ray.serving.replica").METHODS)
    assert (shard.first, shard.rows, shard.dim, shard.norms) == (256, 300, 8, (1.0, 0.0))
    assert (shard.remote, Shard.remote) == (True, False)
    with pytest.raises(AttributeError):
        _ = shard.other


def test_a_call_is_made_again_where_a_replica_fails() -> None:
    handle = Handle(ConnectionError("died"), ConnectionError("died"), reply(7))
    shard, page = remote(handle)
    assert shard.best("exact", np.zeros((1, 8), np.float32), 1) == 7
    assert len(handle.asked) == 3
    text = page()
    assert 'failures_total{model="lm",reason="lost",shard="2",version="1"} 2.0' in text
    assert 'calls_total{model="lm",replica="r1",shard="2",version="1"} 1.0' in text


def test_several_shards_are_asked_before_one_is_waited_for() -> None:
    handle = Handle(reply(1), reply(2))
    shard, _ = remote(handle)
    answers = [shard.begin(lambda one: one.weight(np.array([300]))) for _ in range(2)]
    assert len(handle.asked) == 2
    assert [answer() for answer in answers] == [1, 2]


def test_what_it_refuses_and_what_is_a_defect() -> None:
    refusal = ("hidden", "row 3: nan", "finite numbers")
    shard, _ = remote(Handle(reply(refused=refusal), reply(failed="ValueError: x")))
    with pytest.raises(InvalidRequest, match="hidden: got row 3: nan, allowed: finite numbers"):
        shard.weight(np.array([300]))
    with pytest.raises(RuntimeError, match="ValueError: x"):
        shard.weight(np.array([300]))


def test_a_silent_shard_is_waited_for_by_one_call_at_a_time() -> None:
    handle = Handle(None, None, reply(1), reply(2))
    shard, page = remote(handle, most_s=0.1)
    ids = np.array([300])
    with pytest.raises(ShardUnavailable, match=r"rows 256 .. 555 of the vocabulary"):
        shard.weight(ids)
    waits = shard.begin(lambda one: one.weight(ids))
    began = monotonic()
    with pytest.raises(ShardUnavailable):
        shard.weight(ids)
    assert monotonic() - began < 0.05
    with pytest.raises(ShardUnavailable):
        waits()
    assert shard.weight(ids) == 1
    assert shard.weight(ids) == 2
    assert 'reason="silent",shard="2",version="1"} 1.0' in page()
    assert 'reason="late",shard="2",version="1"} 2.0' in page()


def test_a_short_deadline_of_one_request_says_nothing_of_the_shard() -> None:
    handle = Handle(None, reply(1))
    shard, _ = remote(handle, most_s=30.0, share=0.5)
    began = monotonic()
    with ending_by(began + 0.1), pytest.raises(ShardUnavailable):
        shard.weight(np.array([300]))
    assert monotonic() - began < 1.0
    assert shard.weight(np.array([300])) == 1


def test_only_ids_of_the_shard_travel() -> None:
    handle = Handle(reply(0), reply(0))
    shard, _ = remote(handle)
    hidden, offsets = np.zeros((2, 8), np.float32), np.array([0, 2, 5])
    ids = np.array([1, 300, 256, 555, 556], np.int32)
    shard.logits64(hidden, offsets, ids)
    _, (_, ends, kept) = handle.asked[0]
    np.testing.assert_array_equal(ends, [0, 1, 3])
    np.testing.assert_array_equal(kept, [300, 256, 555])
    shard.log_z(hidden, 1.0, (offsets, ids, np.arange(5.0)), np.zeros((2, 2)))
    _, (_, _, (ends, kept, values), _) = handle.asked[1]
    np.testing.assert_array_equal(values, [1.0, 2.0, 3.0])


def test_the_page_names_every_series_and_reason() -> None:
    _, page = remote(Handle())
    families = {line.split()[2] for line in page().splitlines() if line.startswith("# TYPE")}
    series = {name for name in families if not name.endswith("_created")}
    assert len(series) == 3
    assert [name for name in series if f"`{name}`" not in PAGE] == []
    for reason in ("lost", "late", "silent"):
        assert f"`{reason}`:" in PAGE
