"""Tensors on a GPU are answered in tensors there, with the host's numbers, and nobody waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.client.beam_search import SearchResult, beam_search
from logitsieve.decoding import LocalDecoder
from logitsieve.gpu.heads import device_named
from tests.synthetic import make_hidden

HIDDEN = make_hidden(4, 12)
SEEDS = np.array([1, 2, 3, 2**64 - 5], np.uint64)
Pair = tuple[LocalDecoder, LocalDecoder]
BY_ROW = ("exact", "scanned", "fallback", "log_z", "log_z_low", "log_z_high")


def there(array: np.ndarray | None = None) -> torch.Tensor:
    """A copy on the GPU; of HIDDEN, if of nothing else."""
    return torch.from_numpy((HIDDEN if array is None else array).copy()).to(device_named("cuda"))


def bits(seeds: np.ndarray) -> torch.Tensor:
    return there(seeds.view(np.int64))


def assert_same(gpu: Any, host: Any) -> None:
    """Equal in everything but for what rounds in log Z; `gpu` all in tensors."""
    for name in gpu._fields:
        mine, theirs = getattr(gpu, name), getattr(host, name)
        if name == "answer":
            continue
        assert isinstance(mine, torch.Tensor), name
        assert str(mine.dtype).endswith(str(theirs.dtype)), name
        if theirs.dtype == np.float32:
            np.testing.assert_allclose(mine.cpu(), theirs, rtol=1e-6, atol=4e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(mine.cpu(), theirs, err_msg=name)
    for name in BY_ROW:
        if (name, host.answer.head) == ("scanned", "certified"):
            continue  # the GPU's bounds are of the fine codes only
        mine, theirs = getattr(gpu.answer, name), getattr(host.answer, name)
        assert (mine is None) == (theirs is None), name
        if theirs is not None:
            assert isinstance(mine, torch.Tensor), name
            np.testing.assert_allclose(mine.cpu(), theirs, rtol=1e-6, err_msg=name)
    told = "model", "version", "digest", "head", "knobs", "normalizer"
    assert [getattr(gpu.answer, name) for name in told] == [
        getattr(host.answer, name) for name in told
    ]


def judge(pair: Pair, asked: dict[str, Any]) -> LocalDecoder:
    """The host, or, where log Z is an interval, the GPU by arrays: its bounds are its own."""
    return pair[0] if asked.get("normalizer") == "certified" else pair[1]


@pytest.mark.parametrize("head", ["exact", "screen"])
@pytest.mark.parametrize("normalizer", [None, "exact", "certified", "candidates"])
def test_topk(pair: Pair, head: str, normalizer: Any) -> None:
    asked: Any = {"head": head, "normalizer": normalizer}
    gpu, host = pair[0].topk(there(), 3, **asked), pair[1].topk(HIDDEN, 3, **asked)
    assert_same(gpu, judge(pair, asked).topk(HIDDEN, 3, **asked))
    np.testing.assert_array_equal(gpu.logits, host.logits)


TARGETS = np.random.default_rng(3).integers(0, 260, (4, 5))


@pytest.mark.parametrize("targets", [TARGETS, TARGETS[:, 0], TARGETS.astype(np.int32)])
def test_scores(pair: Pair, targets: np.ndarray) -> None:
    host = pair[1].score(HIDDEN, targets, normalizer="exact")
    for form in (there(targets), targets, targets.tolist()):
        gpu = pair[0].score(there(), form, normalizer="exact")
        assert_same(gpu, host)
    softmax = pair[1].index.softmax
    ids = np.ascontiguousarray(targets.reshape(4, -1), np.int32)
    logits = softmax.logits64(HIDDEN, np.arange(5) * ids.shape[1], ids.ravel()).reshape(ids.shape)
    log_z: Any = gpu.answer.log_z
    rounded = (logits - log_z.double().cpu().numpy()[:, None]).astype(np.float32)
    np.testing.assert_array_equal(gpu.log_probs, rounded)


def test_scores_are_by_a_proven_interval_where_none_is_named(pair: Pair) -> None:
    gpu = pair[0].score(there(), there(TARGETS))
    assert gpu.answer.normalizer == "certified"
    assert_same(gpu, pair[0].score(HIDDEN, TARGETS))
    value, low, high = cast(Any, gpu.answer)[9:12]
    truth = cast(Any, pair[1].topk(HIDDEN, 1, normalizer="exact").answer.log_z)
    assert ((low <= value) & (value <= high)).all()
    assert ((low.cpu().numpy() <= truth) & (truth <= high.cpu().numpy())).all()


def test_ids_that_there_are_not_score_nothing(pair: Pair) -> None:
    targets = there(TARGETS)
    targets[2, 1], targets[3, 0] = 260, -(2**40)
    log_probs: Any = pair[0].score(there(), targets).log_probs
    impossible = torch.isneginf(log_probs).nonzero().tolist()
    assert impossible == [[2, 1], [3, 0]]
    with pytest.raises(InvalidRequest, match="targets"):
        pair[0].score(there(), [[260]] * 4)


@pytest.mark.parametrize("wrong", [there(TARGETS[:3]), there(TARGETS) * 1.0, there(TARGETS[:, :0])])
def test_wrong_targets_are_refused(pair: Pair, wrong: torch.Tensor) -> None:
    with pytest.raises(InvalidRequest, match="targets"):
        pair[0].score(there(), wrong)


@pytest.mark.parametrize(("step", "dtype"), [(0, torch.float32), (2**64 - 1, torch.float64)])
def test_draws_from_all(pair: Pair, step: int, dtype: torch.dtype) -> None:
    asked: Any = {"step": step, "temperature": 0.7, "head": "exact"}
    host = pair[1].sample(HIDDEN, 2, seeds=SEEDS, **asked)
    gpu = pair[0].sample(there().to(dtype), 2, seeds=bits(SEEDS), **asked)
    assert_same(gpu, host)


@pytest.mark.parametrize("normalizer", [None, "certified", "exact"])
@pytest.mark.parametrize("head", ["exact", "certified"])
def test_draws_from_all_with_a_log_z(pair: Pair, head: Any, normalizer: Any) -> None:
    asked: Any = {"head": head, "normalizer": normalizer, "temperature": 1.3}
    gpu = pair[0].sample(there(), 2, seeds=bits(SEEDS), **asked)
    assert_same(gpu, pair[0].sample(HIDDEN, 2, seeds=SEEDS, **asked))
    host = pair[1].sample(HIDDEN, 2, seeds=SEEDS, head="exact", temperature=1.3)
    np.testing.assert_array_equal(gpu.ids, host.ids)


def test_seeds_may_be_of_either_place(pair: Pair) -> None:
    asked: Any = {"top_k": 9, "head": "exact"}
    many, one = (pair[1].sample(HIDDEN, 20, seeds=seeds, **asked) for seeds in (SEEDS, 7))
    for seeds in (SEEDS, bits(SEEDS).view(torch.uint64)):
        assert_same(pair[0].sample(there(), 20, seeds=seeds, **asked), many)
    for seed in (7, torch.tensor(7)):
        assert_same(pair[0].sample(there(), 20, seeds=seed, **asked), one)


@pytest.mark.parametrize(
    "asked",
    [
        {"top_k": 1},
        {"top_k": 7, "temperature": 1.7},
        {"top_k": 16, "top_p": 0.8, "head": "certified"},
        {"top_k": 16, "top_p": 0.9, "min_p": 0.02, "temperature": 0.5},
        {"top_k": 9, "min_p": 0.1, "head": "screen"},
        {"top_k": 9, "min_p": 1.0},
        {"temperature": 0.0},
        {"temperature": 0.0, "top_k": 5, "top_p": 0.1, "head": "screen"},
    ],
)
def test_draws_from_lists(pair: Pair, asked: dict[str, Any]) -> None:
    asked = {"head": "exact", **asked, "step": 5}
    gpu = pair[0].sample(there(), 33, seeds=bits(SEEDS), **asked)
    assert_same(gpu, pair[1].sample(HIDDEN, 33, seeds=SEEDS, **asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"top_p": 0.5, "head": "exact"},
        {"top_k": 100, "head": "exact"},
        {"head": "screen"},
        {"head": "exact", "normalizer": "certified"},
        {"head": "exact", "constraints": Constraints(banned=[3, 4])},
    ],
)
def test_other_draws_go_by_the_host(pair: Pair, asked: dict[str, Any]) -> None:
    host = judge(pair, asked).sample(HIDDEN, 2, seeds=SEEDS, **asked)
    assert_same(pair[0].sample(there(), 2, seeds=bits(SEEDS), **asked), host)


@pytest.mark.parametrize("wrong", [bits(SEEDS)[:2], bits(SEEDS) * 1.0])
def test_wrong_seeds_are_refused(pair: Pair, wrong: torch.Tensor) -> None:
    with pytest.raises(InvalidRequest, match="seeds"):
        pair[0].sample(there(), seeds=wrong, head="exact")


def hypotheses(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "scores": -random.exponential(2.0, 4).astype(np.float32),
        "lengths": random.integers(0, 9, 4).astype(np.int32),
        "finished": random.random(4) < 0.4,
    }


@pytest.mark.parametrize(
    ("head", "beams_in", "beams_out", "alpha"),
    [("exact", 1, 4, 0.6), ("screen", 2, 11, -2.0), ("certified", 4, 1, 0.0), ("exact", 4, 5, 1.0)],
)
def test_beams(pair: Pair, head: Any, beams_in: int, beams_out: int, alpha: float) -> None:
    best = pair[1].topk(HIDDEN, 3).ids
    ends = [int(best[0, 1]), 17, int(best[3, 0])]
    asked: Any = {"head": head, "beams_in": beams_in, "beams_out": beams_out, "eos_ids": ends}
    asked["length_alpha"] = alpha
    for seed in range(2):
        vectors = hypotheses(seed)
        host = pair[1].beam_step(HIDDEN, **vectors, **asked)
        tensors: Any = {name: there(vector) for name, vector in vectors.items()}
        assert_same(pair[0].beam_step(there(), **tensors, **asked), host)
    assert_same(pair[0].beam_step(there(), **vectors, **asked), host)


def test_equal_pairs_are_in_the_hosts_order(pair: Pair) -> None:
    """Hypotheses that are the same three times over."""
    hidden = np.repeat(HIDDEN[:1], 3, axis=0)
    asked: Any = {"beams_in": 3, "beams_out": 9, "head": "exact"}
    gpu, host = pair[0].beam_step(there(hidden), **asked), pair[1].beam_step(hidden, **asked)
    assert_same(gpu, host)
    assert gpu.parents[0].tolist() == [0, 1, 2] * 3


@pytest.mark.parametrize(("beams_in", "beams_out"), [(1, 270), (2, 263)])
def test_groups_with_too_few_pairs(pair: Pair, beams_in: int, beams_out: int) -> None:
    asked: Any = {"beams_in": beams_in, "beams_out": beams_out, "eos_ids": [3], "head": "exact"}
    finished = np.array([False, True, True, False])
    gpu = pair[0].beam_step(there(), finished=there(finished), **asked)
    assert_same(gpu, pair[1].beam_step(HIDDEN, finished=finished, **asked))
    assert (gpu.tokens[:, -1] == -1).all()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("scores", torch.zeros(3)),
        ("scores", torch.zeros(4, dtype=torch.bool)),
        ("lengths", torch.zeros(4)),
        ("finished", torch.zeros(4, dtype=torch.int32)),
    ],
)
def test_wrong_hypotheses_are_refused(pair: Pair, field: str, values: torch.Tensor) -> None:
    vectors: Any = {field: there(values.numpy())}
    with pytest.raises(InvalidRequest, match=field):
        pair[0].beam_step(there(), beams_in=2, beams_out=2, eos_ids=[1], **vectors)


def test_what_may_have_finished_needs_an_end(pair: Pair) -> None:
    with pytest.raises(InvalidRequest, match="eos_ids"):
        pair[0].beam_step(there(), finished=there(np.zeros(4, bool)), beams_in=2, beams_out=2)


def test_constraints_and_other_normalizers_go_by_the_host(pair: Pair) -> None:
    rules = Constraints(banned=[3, 7], biased=[9], bias=[2.0])
    vectors = hypotheses(4)
    tensors: Any = {name: there(vector) for name, vector in vectors.items()}
    steps: Any = {"beams_in": 2, "beams_out": 3, "eos_ids": [2]}
    for asked in ({"constraints": rules}, {"normalizer": "certified"}):
        more: Any = {**asked, "head": "exact"}
        by = pair[0]  # by arrays: `score` has an interval for log Z, of bounds that are the GPU's
        assert_same(pair[0].topk(there(), 4, **more), by.topk(HIDDEN, 4, **more))
        gpu = pair[0].score(there(), there(TARGETS), **more)
        assert_same(gpu, by.score(HIDDEN, TARGETS, **more))
        stepped = pair[0].beam_step(there(), **tensors, **steps, **more)
        assert_same(stepped, by.beam_step(HIDDEN, **vectors, **steps, **more))


def test_a_bad_row_has_no_numbers_and_harms_no_other(pair: Pair) -> None:
    hidden, good = there(), [0, 1, 3]
    hidden[2, 1] = torch.inf
    seeds: Any = {"seeds": bits(SEEDS), "head": "exact"}
    top = pair[0].topk(hidden, 2, head="exact", normalizer="exact")
    scored = pair[0].score(hidden, there(TARGETS), normalizer="exact")
    drawn = pair[0].sample(hidden, 4, **seeds)
    listed = pair[0].sample(hidden, 4, **seeds, top_k=5)
    for reply, numbers in (
        (top, top.logits), (scored, scored.log_probs),
        (drawn, drawn.log_probs), (listed, listed.log_probs),
    ):  # fmt: skip
        log_z: Any = reply.answer.log_z
        assert torch.isnan(torch.as_tensor(numbers)).all(1).nonzero().tolist() == [[2]]
        assert torch.isnan(log_z).nonzero().tolist() == [[2]]
        assert (~torch.as_tensor(reply.answer.exact)).nonzero().tolist() == [[2]]
    for found in (top, drawn, listed):
        assert (found.ids[2] == -1).all()
    whole = pair[0].sample(there(), 4, **seeds, top_k=5)
    assert torch.equal(torch.as_tensor(listed.ids)[good], torch.as_tensor(whole.ids)[good])


def test_a_hypothesis_that_cannot_be_answered_has_no_continuations(pair: Pair) -> None:
    hidden, asked = there(), dict[str, Any](beams_in=2, beams_out=3, head="exact")
    hidden[2, 1] = torch.nan
    gpu, host = pair[0].beam_step(hidden, **asked), pair[1].beam_step(HIDDEN, **asked)
    assert gpu.answer.exact.tolist() == [True, True, False, False]
    assert (gpu.parents[1] == 1).all()
    np.testing.assert_array_equal(gpu.tokens[0], host.tokens[0])
    for wrong in (np.nan, np.inf, -np.inf):
        scores = there(np.array([wrong, 0, 0, wrong], np.float32))
        assert pair[0].beam_step(there(), scores, **asked).parents[:, 0].tolist() == [1, 0]


def test_a_search_whose_model_is_on_the_gpu(pair: Pair) -> None:
    contexts = make_hidden(50, 12, seed=9)

    def search(decoder: LocalDecoder, of: Any) -> SearchResult:
        return beam_search(
            decoder, HIDDEN[:2], lambda parents, tokens: of(contexts[tokens % 50]),
            beams=2, eos_ids=[3], max_tokens=3, head="exact",
        )  # fmt: skip

    gpu, host = search(pair[0], there), search(pair[1], np.asarray)
    for mine, theirs in zip(gpu.hypotheses, host.hypotheses, strict=True):
        assert [each.tokens for each in mine] == [each.tokens for each in theirs]
    assert gpu.exact.tolist() == host.exact.tolist()


class _Waits(TorchDispatchMode):
    """Notes what makes the host look at a value."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal.default")
        if any(part in name for part in waits):
            self.noted.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def nobody_waits() -> Iterator[None]:
    """Fails where a value of the GPU is waited for."""
    if device_named("cuda").type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    else:
        with _Waits() as waits:
            yield
        assert waits.noted == []


def test_nothing_is_waited_for(pair: Pair) -> None:
    vectors: Any = {name: there(vector) for name, vector in hypotheses(2).items()}
    hidden, seeds, targets = there(), bits(SEEDS), there(TARGETS)

    def ask() -> None:
        pair[0].topk(hidden, 3, normalizer="exact")
        pair[0].score(hidden, targets)
        pair[0].score(hidden, TARGETS, normalizer="exact")
        pair[0].sample(hidden, 2, seeds=seeds, head="exact")
        pair[0].sample(hidden, 2, head="certified")
        pair[0].sample(hidden, 2, seeds=SEEDS, top_k=8, top_p=0.9)
        pair[0].beam_step(hidden, **vectors, beams_in=2, beams_out=4, eos_ids=[3])

    ask()  # which captures
    with nobody_waits():
        ask()
    by_host: AbstractContextManager[Any] = pytest.raises((AssertionError, RuntimeError))
    with by_host, nobody_waits():
        bool((hidden > 0).any())
