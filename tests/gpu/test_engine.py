"""A decoder on a GPU gives the numbers of the host, to tensors in tensors without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.gpu.device import device_named
from tests.gpu.replies import (
    HIDDEN,
    SEEDS,
    TARGETS,
    Pair,
    assert_contains,
    assert_same,
    bits,
    hypotheses,
    judge,
    there,
    true_log_probs,
)
from tests.gpu.softmaxes import sweep
from tests.oracle import nearest_or_below


@pytest.mark.parametrize("head", ["exact", "certified", "screen"])
def test_topk_of_arrays(pair: Pair, head: str) -> None:
    gpu, host = (each.topk(HIDDEN, 3, head=head, normalizer="exact") for each in pair)
    np.testing.assert_array_equal(gpu.ids, host.ids)
    np.testing.assert_array_equal(gpu.logits, host.logits)
    np.testing.assert_array_equal(gpu.answer.exact, host.answer.exact)
    np.testing.assert_array_equal(gpu.answer.fallback, host.answer.fallback)
    assert gpu.answer.log_z is not None
    assert host.answer.log_z is not None
    np.testing.assert_allclose(gpu.answer.log_z, host.answer.log_z, rtol=3e-7)


def test_constraints_of_arrays(pair: Pair) -> None:
    asked = Constraints(banned=[int(pair[1].topk(HIDDEN, 1).ids[0, 0]), 5], biased=[7], bias=[3.0])
    gpu, host = (each.topk(HIDDEN, 4, head="exact", constraints=asked) for each in pair)
    np.testing.assert_array_equal(gpu.ids, host.ids)
    np.testing.assert_array_equal(gpu.logits, host.logits)


def test_scores_and_beams_of_arrays(pair: Pair) -> None:
    gpu, host = (each.score(HIDDEN, [[3, 4]] * 4, normalizer="exact") for each in pair)
    np.testing.assert_allclose(gpu.log_probs, host.log_probs, atol=2e-6)
    stepped, there = (each.beam_step(HIDDEN, beams_in=2, beams_out=3) for each in pair)
    np.testing.assert_array_equal(stepped.tokens, there.tokens)
    np.testing.assert_array_equal(stepped.parents, there.parents)


@pytest.mark.parametrize("step", sweep(0, 2**64 - 1, more=[7]))
def test_draws_of_the_exact_head_are_the_hosts(pair: Pair, step: int) -> None:
    seeds = np.array([1, 2, 3, 2**64 - 5], np.uint64)
    gpu, host = (
        each.sample(HIDDEN, 3, seeds=seeds, step=step, temperature=0.7, head="exact")
        for each in pair
    )
    np.testing.assert_array_equal(gpu.ids, host.ids)
    np.testing.assert_allclose(gpu.log_probs, host.log_probs, atol=2e-6)


def test_draws_of_what_constraints_leave_are_the_hosts(pair: Pair) -> None:
    best = pair[1].topk(HIDDEN, 2).ids.ravel().tolist()
    asked = Constraints(banned=best, biased=[9], bias=[2.0])
    gpu, host = (
        each.sample(HIDDEN, 2, seeds=[1, 2, 3, 4], head="exact", constraints=asked) for each in pair
    )
    np.testing.assert_array_equal(gpu.ids, host.ids)


@pytest.mark.parametrize(
    "target", sweep({"head": "screen"}, more=[{"head": "exact", "top_p": 0.5}])
)
def test_filtered_draws_and_those_of_other_heads(pair: Pair, target: dict[str, Any]) -> None:
    gpu, host = (each.sample(HIDDEN, seeds=[1, 2, 3, 4], **target) for each in pair)
    np.testing.assert_array_equal(gpu.ids, host.ids)


def test_draws_of_the_certified_head_are_those_of_the_exact_one(pair: Pair) -> None:
    rules, seeds = Constraints(banned=[5], biased=[9], bias=[2.0]), [1, 2, 3, 4]
    gpu = pair[0].sample(HIDDEN, 3, seeds=seeds, head="certified", constraints=rules)
    host = pair[1].sample(HIDDEN, 3, seeds=seeds, head="exact", constraints=rules)
    np.testing.assert_array_equal(gpu.ids, host.ids)
    assert gpu.answer.log_z_low is not None
    assert gpu.answer.log_z_high is not None
    assert host.answer.log_z_low is not None
    assert host.answer.log_z_high is not None
    assert (gpu.answer.log_z_low <= host.answer.log_z_high).all()
    assert (host.answer.log_z_low <= gpu.answer.log_z_high).all()


@pytest.mark.parametrize("head", ["exact", "screen"])
@pytest.mark.parametrize("normalizer", [None, "exact", "certified", "candidates"])
def test_topk(pair: Pair, head: str, normalizer: Any) -> None:
    asked: Any = {"head": head, "normalizer": normalizer}
    gpu, host = pair[0].topk(there(), 3, **asked), pair[1].topk(HIDDEN, 3, **asked)
    assert_same(gpu, judge(pair, asked).topk(HIDDEN, 3, **asked))
    np.testing.assert_array_equal(gpu.logits, host.logits)


@pytest.mark.parametrize("targets", [TARGETS, TARGETS[:, 0], TARGETS.astype(np.int32)])
def test_scores(pair: Pair, targets: np.ndarray) -> None:
    host = pair[1].score(HIDDEN, targets, normalizer="exact")
    for form in (there(targets), targets, targets.tolist()):
        gpu: Any = pair[0].score(there(), form, normalizer="exact")
        assert_same(gpu, host)
    assert torch.as_tensor(gpu.answer.exact).all()
    true = np.take_along_axis(true_log_probs(pair, 1.0), targets.reshape(4, -1).astype(int), 1)
    assert nearest_or_below(np.asarray(gpu.log_probs.cpu()), true).all()


@pytest.mark.parametrize("normalizer", ["exact", "certified"])
def test_all_probabilities_add_up_to_one_at_most(pair: Pair, normalizer: Any) -> None:
    hidden = np.concatenate([HIDDEN[:2], 40 * HIDDEN[2:3], np.zeros((1, 12), np.float32)])
    everything = np.tile(np.arange(260), (4, 1))
    scored: Any = pair[0].score(there(hidden), there(everything), normalizer=normalizer)
    log_probs = scored.log_probs.cpu().numpy()
    assert (log_probs <= 0).all()
    assert (np.exp(log_probs.astype(np.longdouble)).sum(axis=1) <= 1).all()
    true = true_log_probs(pair, 1.0, hidden)
    proven = scored.answer.exact.cpu().numpy()
    assert proven.all() or normalizer == "certified"
    assert nearest_or_below(log_probs[proven], true[proven]).all()
    assert_contains(scored.answer, pair, 1.0, hidden)


def test_scores_are_by_a_proven_interval_where_none_is_named(pair: Pair) -> None:
    gpu = pair[0].score(there(), there(TARGETS))
    assert gpu.answer.normalizer == "certified"
    assert_same(gpu, pair[0].score(HIDDEN, TARGETS))
    assert_contains(gpu.answer, pair, 1.0)


@pytest.mark.parametrize("normalizer", [None, "certified"])
def test_a_width_bounds_scores_and_log_z(pair: Pair, normalizer: Any) -> None:
    """Where none is named, `exact` is computed on the GPU; `certified` reaches it by the host."""
    gpu: Any = pair[0].score(there(), there(TARGETS), width=1e-5, normalizer=normalizer)
    assert gpu.answer.normalizer == (normalizer or "exact")
    true = np.take_along_axis(true_log_probs(pair, 1.0), TARGETS, 1)
    assert (np.abs(gpu.log_probs.cpu().numpy() - true) <= 1e-5 + 1e-6).all()
    assert_contains(gpu.answer, pair, 1.0)
    asked: Any = {"width": 1e-5, "normalizer": normalizer, "head": "certified"}
    assert_same(gpu, pair[0].score(HIDDEN, TARGETS, width=1e-5, normalizer=normalizer))
    assert_same(pair[0].topk(there(), 3, **asked), pair[0].topk(HIDDEN, 3, **asked))
    drawn: Any = pair[0].sample(there(), 2, seeds=bits(SEEDS), **asked)
    assert_contains(drawn.answer, pair, 1.0)


def test_ids_that_there_are_not_score_nothing(pair: Pair) -> None:
    targets = there(TARGETS)
    targets[2, 1], targets[3, 0] = 260, -(2**40)
    log_probs: Any = pair[0].score(there(), targets).log_probs
    impossible = torch.isneginf(log_probs).nonzero().tolist()
    assert impossible == [[2, 1], [3, 0]]
    with pytest.raises(InvalidRequest, match="targets"):
        pair[0].score(there(), [[260]] * 4)


@pytest.mark.parametrize(("step", "dtype"), [(0, torch.float32), (2**64 - 1, torch.float64)])
def test_draws_from_all(pair: Pair, step: int, dtype: torch.dtype) -> None:
    asked: Any = {"step": step, "temperature": 0.7, "head": "exact"}
    host = pair[1].sample(HIDDEN, 2, seeds=SEEDS, **asked)
    gpu: Any = pair[0].sample(there().to(dtype), 2, seeds=bits(SEEDS), **asked)
    assert_same(gpu, host)
    true = np.take_along_axis(true_log_probs(pair, 1 / 0.7), host.ids, 1)
    assert nearest_or_below(gpu.log_probs.cpu().numpy(), true).all()
    assert_contains(gpu.answer, pair, 1 / 0.7)


@pytest.mark.parametrize("normalizer", sweep(None, "certified", more=["exact"]))
@pytest.mark.parametrize("head", ["exact", "certified"])
def test_draws_from_all_with_a_log_z(pair: Pair, head: Any, normalizer: Any) -> None:
    asked: Any = {"head": head, "normalizer": normalizer, "temperature": 1.3}
    gpu: Any = pair[0].sample(there(), 2, seeds=bits(SEEDS), **asked)
    assert_same(gpu, pair[0].sample(HIDDEN, 2, seeds=SEEDS, **asked))
    host = pair[1].sample(HIDDEN, 2, seeds=SEEDS, head="exact", temperature=1.3)
    np.testing.assert_array_equal(gpu.ids, host.ids)
    assert (np.asarray(gpu.log_probs.cpu()) <= 0).all()
    assert_contains(gpu.answer, pair, 1 / 1.3)


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
        {"top_p": 0.9},
        {"top_p": 0.95, "min_p": 0.02, "temperature": 1.7, "head": "certified"},
        {"min_p": 0.1, "temperature": 0.6},
    ],
)
def test_draws_of_what_filters_leave(pair: Pair, asked: dict[str, Any]) -> None:
    asked = {"head": "exact", **asked, "step": 5}
    gpu: Any = pair[0].sample(there(), 33, seeds=bits(SEEDS), **asked)
    host = pair[1].sample(HIDDEN, 33, seeds=SEEDS, **asked)
    if asked["head"] == "certified" and "top_k" not in asked:  # by all logits on a GPU
        np.testing.assert_array_equal(gpu.ids.cpu(), host.ids)
        named: Any = {"head": "certified", "knobs": host.answer.knobs}
        host = pair[1].sample(HIDDEN, 33, seeds=SEEDS, **{**asked, "head": "exact"})
        host = host._replace(answer=host.answer._replace(**named))
    assert_same(gpu, host)
    for ids, log_probs in zip(gpu.ids.tolist(), gpu.log_probs.double().tolist(), strict=True):
        assert max(log_probs) <= 0
        assert sum(np.exp(list(dict(zip(ids, log_probs, strict=True)).values()))) <= 1


@pytest.mark.parametrize(
    "asked",
    [
        {"top_p": 0.5, "head": "screen"},
        {"top_k": 100, "head": "exact"},
        {"head": "screen"},
        {"head": "exact", "normalizer": "certified"},
        {"head": "exact", "constraints": Constraints(banned=[3, 4])},
    ],
)
def test_other_draws_go_by_the_host(pair: Pair, asked: dict[str, Any]) -> None:
    host = judge(pair, asked).sample(HIDDEN, 2, seeds=SEEDS, **asked)
    assert_same(pair[0].sample(there(), 2, seeds=bits(SEEDS), **asked), host)


def test_constraints_and_other_normalizers_go_by_the_host(pair: Pair) -> None:
    rules = Constraints(banned=[3, 7], biased=[9], bias=[2.0])
    vectors = hypotheses(4)
    tensors: Any = {name: there(vector) for name, vector in vectors.items()}
    steps: Any = {"beams_in": 2, "beams_out": 3, "eos_ids": [2]}
    for asked in ({"constraints": rules}, {"normalizer": "certified"}):
        more: Any = {**asked, "head": "exact"}
        by = pair[0]  # by arrays: the interval for log Z is made of the GPU's own bounds
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
    nucleus = pair[0].sample(hidden, 4, **seeds, top_p=0.9)
    for reply, numbers in (
        (top, top.logits), (scored, scored.log_probs),
        (drawn, drawn.log_probs), (listed, listed.log_probs), (nucleus, nucleus.log_probs),
    ):  # fmt: skip
        log_z: Any = reply.answer.log_z
        assert torch.isnan(torch.as_tensor(numbers)).all(1).nonzero().tolist() == [[2]]
        assert torch.isnan(log_z).nonzero().tolist() == [[2]]
        assert (~torch.as_tensor(reply.answer.exact)).nonzero().tolist() == [[2]]
    for found in (top, drawn, listed, nucleus):
        assert (found.ids[2] == -1).all()
    whole = pair[0].sample(there(), 4, **seeds, top_k=5)
    assert torch.equal(torch.as_tensor(listed.ids)[good], torch.as_tensor(whole.ids)[good])


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
        pair[0].sample(hidden, 2, seeds=seeds, head="certified", top_p=0.9, min_p=0.01)
        pair[0].sample(hidden, 2, head="exact", min_p=0.1)
        pair[0].beam_step(hidden, **vectors, beams_in=2, beams_out=4, eos_ids=[3])

    ask()  # which captures
    with nobody_waits():
        ask()
    by_host: AbstractContextManager[Any] = pytest.raises((AssertionError, RuntimeError))
    with by_host, nobody_waits():
        bool((hidden > 0).any())
