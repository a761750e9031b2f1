"""Replies over shards in other processes are those of the index in one piece, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import IndexUnreadable, InvalidRequest, ShardUnavailable
from logitsieve.decoding import LocalDecoder, ShardedDecoder
from logitsieve.index import open_index
from logitsieve.utils.deadline import ending_by
from tests.ray.serving.conftest import Indexes, without_shards
from tests.ray.serving.running import Deployed
from tests.sharded import D, V
from tests.synthetic import make_hidden

pytestmark = pytest.mark.ray

ROWS = 6


@pytest.fixture(scope="module")
def remote(deployed: Deployed, indexes: Indexes) -> Any:
    """The handles of the two shards of lm@1."""
    shards = pytest.importorskip("logitsieve.ray.serving.shards")
    path = indexes.models / "lm" / "1"
    names = shards.app_names(path, shards.read_manifest(path))
    return [shards.handle_of(name) for name in names]


@pytest.fixture(scope="module")
def decoder(remote: Any, indexes: Indexes, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return decoder_over(remote, indexes, tmp_path_factory.mktemp("ingress"))


def decoder_over(handles: Any, indexes: Indexes, folder: Path) -> ShardedDecoder:
    """A decoder in this process, over an index whose folder has no shards."""
    from logitsieve.ray.serving.metrics import ShardCalls, ShardMetrics
    from logitsieve.ray.serving.opening import remote_shard
    from logitsieve.ray.serving.remote import Patience

    path = without_shards(indexes.models / "lm" / "1", folder / "lm" / "1")
    metrics = ShardMetrics()

    def connect(number: int) -> Any:
        calls = ShardCalls(metrics, "lm", 1, number)
        return remote_shard(handles[number - 1], Patience(30.0, 1.0), calls, path)

    return ShardedDecoder(open_index(path, connect=connect, verify="sizes"), name="lm")


@pytest.fixture(scope="module")
def whole(indexes: Indexes, kernel_cache: Path) -> LocalDecoder:
    path = indexes.whole / "lm" / "1"
    return LocalDecoder(open_index(path, kernel_cache=kernel_cache), name="lm")


def assert_equal(one: Any, other: Any) -> None:
    for name in one._fields[:-1]:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("exact", "log_z", "log_z_low", "log_z_high"):
        left, right = getattr(one.answer, name), getattr(other.answer, name)
        np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.mark.parametrize("head", ["exact", "certified", "screen"])
@pytest.mark.parametrize("rows", [1, 40])
def test_topk(decoder: ShardedDecoder, whole: LocalDecoder, head: str, rows: int) -> None:
    hidden = make_hidden(rows, D)
    assert_equal(whole.topk(hidden, 7, head=head), decoder.topk(hidden, 7, head=head))


def test_topk_is_the_brute_force_in_float64(decoder: ShardedDecoder, whole: LocalDecoder) -> None:
    hidden, softmax = make_hidden(ROWS, D), whole.index.softmax
    logits = hidden.astype(float) @ softmax.weight.astype(float).T + softmax.bias
    best = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(decoder.topk(hidden, 3, head="certified").ids, best)


@pytest.mark.parametrize("head", ["exact", "certified"])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_draws(
    decoder: ShardedDecoder, whole: LocalDecoder, head: str, filters: dict[str, Any]
) -> None:
    hidden, seeds = make_hidden(ROWS, D), np.arange(ROWS, dtype=np.uint64)
    asked: dict[str, Any] = {"samples": 3, "seeds": seeds, "head": head, **filters}
    one, other = whole.sample(hidden, **asked), decoder.sample(hidden, **asked)
    np.testing.assert_array_equal(one.ids, other.ids)


def test_log_z_beams_and_constraints(decoder: ShardedDecoder, whole: LocalDecoder) -> None:
    hidden = make_hidden(ROWS, D)
    targets = np.tile(np.array([[0, 300, V - 1]], np.int32), (ROWS, 1))
    banned = Constraints(banned=list(range(0, V, 3)))
    asked: list[Callable[[LocalDecoder], Any]] = [
        lambda one: one.score(hidden, targets, head="exact", normalizer="exact"),
        lambda one: one.beam_step(hidden, beams_in=2, beams_out=4, normalizer="exact"),
        lambda one: one.topk(hidden, 5, constraints=banned, head="exact"),
    ]
    for each in asked:
        assert_equal(each(whole), each(decoder))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_is_refused_has_the_message_of_one_process(
    decoder: ShardedDecoder, whole: LocalDecoder, value: float
) -> None:
    hidden = make_hidden(ROWS, D)
    hidden[3, 1] = value
    with pytest.raises(InvalidRequest) as local:
        whole.topk(hidden, 5, head="exact")
    with pytest.raises(InvalidRequest) as over_ray:
        decoder.topk(hidden, 5, head="exact")
    assert str(local.value) == str(over_ray.value)


def test_a_shard_of_another_place_is_refused_by_its_hash(
    remote: Any, indexes: Indexes, tmp_path: Path
) -> None:
    with pytest.raises(IndexUnreadable, match=r"another shard: rows \d+ .. \d+ of \w+, digest"):
        decoder_over(remote[::-1], indexes, tmp_path)


def test_a_slow_shard_keeps_the_deadline(remote: Any, indexes: Indexes, tmp_path: Path) -> None:
    decoder = decoder_over(remote, indexes, tmp_path)
    with ending_by(monotonic() - 1), pytest.raises(ShardUnavailable):
        decoder.topk(make_hidden(1, D), 1)
    assert decoder.topk(make_hidden(1, D), 1).ids.shape == (1, 1)
