from functools import cache
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.results import SampleReply
from logitsieve.decoding import NORMALIZERS, LocalDecoder, sampler
from logitsieve.decoding.sampler import TRUSTED
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from tests.decoding.normalized import CONSTRAINTS, HIDDEN, ORDER, SIZE, logits_of
from tests.log_z import log_z_in, present
from tests.oracle import chi_square_p, drawn, filtered, log_sum_exp, softmax
from tests.refusals import refused
from tests.server.running import write_whole
from tests.synthetic import make_hidden, write_heads


def counts_of(ids: np.ndarray) -> np.ndarray:
    return np.bincount(ids.ravel(), minlength=SIZE)


@pytest.mark.parametrize("head", ["screen", "svd"])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("constraints", ["none", "best banned", "worst biased up", "penalised"])
def test_lazy_draws_follow_the_softmax(
    decoder: LocalDecoder, head: str, temperature: float, constraints: str
) -> None:
    """The svd head looks at 128 of 300 rows; the random lists of the screen miss good ones."""
    asked = CONSTRAINTS[constraints]
    options: Any = {"temperature": temperature, "constraints": asked, "head": head}
    reply = decoder.sample(HIDDEN, 6000, seeds=range(4), **options)
    assert not reply.answer.proven.any()
    assert reply.answer.normalizer == "sampled"
    good = decoder.topk(HIDDEN, TRUSTED, head=head).ids == ORDER[:, :TRUSTED]
    rows = np.flatnonzero(good.all(axis=1))
    assert head == "screen" or rows.size > 1
    for row in rows:
        probs = softmax(logits_of(asked)[row], temperature)
        assert chi_square_p(counts_of(reply.ids[row]), probs) > 1e-3


def test_what_a_head_missed_is_drawn_all_the_same(decoder: LocalDecoder) -> None:
    """All that the screen's lists hold is banned: everything outside is looked at."""
    found = decoder.index.head("screen").candidates(HIDDEN, 5)
    lists = np.split(found.ids, found.offsets[1:-1])
    asked = Constraints(banned=[ids.tolist() for ids in lists])
    reply = decoder.sample(HIDDEN, 6000, seeds=range(4), constraints=asked, head="screen")
    for ids, logits in zip(reply.ids, logits_of(asked), strict=True):
        assert chi_square_p(counts_of(ids), softmax(logits)) > 1e-3


@cache
def truly_drawn(
    constraints: str, temperature: float, filters: tuple[float, float]
) -> list[tuple[np.ndarray, list[int], list[int]]]:
    """Of each row its logits, what filters leave and 300 draws of step 3; its seed is the row."""
    found = []
    for row, logits in enumerate(logits_of(CONSTRAINTS[constraints])):
        left = filtered(logits, temperature, 0, *filters)
        found.append((logits, left, drawn(logits, 300, row, 3, temperature, left)))
    return found


@pytest.mark.parametrize(
    ("constraints", "temperature", "filters"),
    [
        *zip(CONSTRAINTS, cycle([0.8, 1e-5, 0.1, 1e4]), repeat((1.0, 0.0)), strict=False),
        *zip(CONSTRAINTS, repeat(0.8), cycle([(0.9, 0.0), (1.0, 0.02), (0.7, 0.05)]), strict=False),
    ],
)
@pytest.mark.parametrize("head", ["full", "sketch"])
def test_draws_are_the_best_of_what_remains_by_the_noise_of_all(
    decoder: LocalDecoder,
    head: str,
    constraints: str,
    temperature: float,
    filters: tuple[float, float],
) -> None:
    """So a filter changes only the draws that it forbids."""
    asked, (top_p, min_p) = CONSTRAINTS[constraints], filters
    options: Any = {"seeds": range(4), "step": 3, "temperature": temperature, "constraints": asked}
    reply = decoder.sample(HIDDEN, 300, top_p=top_p, min_p=min_p, head=head, **options)
    assert reply.answer.proven.all()
    of_some = filters != (1.0, 0.0) or "allow" in constraints
    assert reply.answer.normalizer == ("candidates" if of_some else head)
    truths = truly_drawn(constraints, temperature, filters)
    for row, (logits, left, ids) in enumerate(truths):
        assert reply.ids[row].tolist() == ids
        log_z, scaled = (
            log_sum_exp(logits[left] / temperature),
            logits[reply.ids[row]] / temperature,
        )
        value, low, high = (each[row] for each in log_z_in(reply.answer))
        assert low - 1e-6 * abs(log_z) <= log_z <= high + 1e-6 * abs(log_z)
        if head == "full":
            assert value == pytest.approx(log_z, rel=1e-6)
            wanted = scaled - log_z
            np.testing.assert_allclose(reply.log_probs[row], wanted, rtol=1e-6, atol=1e-7)
        off = 1e-6 * (1 + np.abs(scaled))
        assert (reply.log_probs[row] >= np.minimum(scaled - high, 0) - off).all()
        assert (reply.log_probs[row] <= np.minimum(scaled - low + off, 0)).all()


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("min_p", [0.0, 0.003, 0.3])
@pytest.mark.parametrize("constraints", ["none", "best banned", "worst biased up", "penalised"])
@pytest.mark.parametrize("best", [1, 8, SIZE])
def test_draws_by_the_best_ids_are_those_by_all(
    decoder: LocalDecoder,
    monkeypatch: pytest.MonkeyPatch,
    top_p: float,
    min_p: float,
    constraints: str,
    best: int,
) -> None:
    options: Any = {"seeds": range(4), "step": 2, "temperature": 1.2, "top_p": top_p}
    options |= {"min_p": min_p, "constraints": CONSTRAINTS[constraints]}
    with monkeypatch.context() as all_logits:
        all_logits.setattr(decoder.index.head("full"), "quick_best", False)
        wanted = LocalDecoder(decoder.index).sample(HIDDEN, 200, head="full", **options)
    monkeypatch.setattr(sampler, "BEST", best)
    monkeypatch.setattr(sampler, "MANY", min(4 * best, SIZE - 1))
    monkeypatch.setattr(sampler, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(sampler, "PRODUCTS_A_DRAW", 0)
    monkeypatch.setattr(sampler, "MOST_OPEN", np.inf)
    monkeypatch.setattr(decoder.index.head("sketch"), "quick_best", True)
    decoder = LocalDecoder(decoder.index)  # without heads made before
    for head in ("full", "sketch"):
        scored = decoder.sample(HIDDEN, 200, head=head, **options)
        np.testing.assert_array_equal(scored.ids, wanted.ids)
        assert scored.answer.proven.all()
        if head == "full":
            (_, low, high), (_, least, most) = map(log_z_in, (scored.answer, wanted.answer))
            assert ((low <= most) & (high >= least)).all()
            off = np.abs(scored.log_probs - wanted.log_probs)
            assert (off <= (high - low)[:, None] + 1e-6 * (1 + np.abs(wanted.log_probs))).all()
    if top_p == 1.0 and min_p == 0.0:
        monkeypatch.delattr(sampler, "_from_all")  # no draw is left open
    for head in ("full", "sketch"):
        reply = decoder.sample(HIDDEN, 200, head=head, log_probs=False, **options)
        np.testing.assert_array_equal(reply.ids, wanted.ids)
        assert reply.answer.proven.all()
        assert (reply.answer.log_z, reply.answer.normalizer) == (None, "")
        assert np.isnan(reply.log_probs).all()
        assert (reply.answer.scanned <= SIZE).all()


def test_a_normalizer_wants_log_p(decoder: LocalDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MANY", 8)
    monkeypatch.setattr(sampler, "LEAST_PRODUCTS", 0)
    for top_p in (1.0, 0.5):
        options: Any = {"seeds": 1, "normalizer": "full", "head": "full", "top_p": top_p}
        reply = decoder.sample(HIDDEN, log_probs=False, **options)
        np.testing.assert_array_equal(reply.log_probs, decoder.sample(HIDDEN, **options).log_probs)


@pytest.mark.parametrize("width", [1e-9, 1e-5, 0.01, 100.0])
@pytest.mark.parametrize("min_p", [0.0, 0.001])
def test_a_width_holds_for_log_z_of_what_filters_leave(
    decoder: LocalDecoder, width: float, min_p: float
) -> None:
    options: Any = {"seeds": range(4), "temperature": 1.3, "top_p": 0.9, "min_p": min_p}
    options["head"] = "sketch"
    plain = decoder.sample(HIDDEN, 20, **options)
    reply = decoder.sample(HIDDEN, 20, width=width, **options)
    np.testing.assert_array_equal(reply.ids, plain.ids)
    _, low, high = log_z_in(reply.answer)
    assert (high - low <= width + 2e-6).all()  # bounds are rounded outward to float32
    for row, logits in enumerate(logits_of(None)):
        left = filtered(logits, 1.3, 0, 0.9, min_p)
        log_z = log_sum_exp(logits[left] / 1.3)
        assert low[row] <= log_z <= high[row]
        wanted = logits[reply.ids[row]] / 1.3 - log_z
        assert (np.abs(reply.log_probs[row] - wanted) <= width + 1e-6).all()


OPTIONS: list[dict[str, Any]] = [
    {"head": "sketch"},
    {"head": "sketch", "normalizer": "sketch"},
    {"head": "full"},
    {"head": "screen"},
    {"head": "svd", "top_p": 0.8},
    {"head": "full", "top_p": 0.9, "min_p": 0.001},
    {"head": "sketch", "top_p": 0.9},
    {"head": "sketch", "top_k": 40, "min_p": 0.01},
]


@pytest.mark.parametrize(
    ("options", "constraints"),
    [*zip(OPTIONS, cycle(["none", "best banned", "some allow few"]), strict=False)],
)
def test_a_draw_depends_on_its_seed_step_and_place_alone(
    decoder: LocalDecoder, options: dict[str, Any], constraints: str
) -> None:
    asked, seeds = CONSTRAINTS[constraints], np.array([5, 1 << 63, 5, 0], np.uint64)

    def sampled(rows: slice, samples: int, step: int = 9, **more: Any) -> SampleReply:
        part = None
        if asked is not None:
            part = asked.for_rows(4).take(np.arange(4)[rows])
        return decoder.sample(
            HIDDEN[rows], samples, seeds=seeds[rows], step=step, constraints=part, **options, **more
        )

    whole = sampled(slice(None), 60)
    assert len(np.unique(whole.ids[1])) > 1
    for row in range(4):
        alone = sampled(slice(row, row + 1), 25)
        np.testing.assert_array_equal(alone.ids[0], whole.ids[row, :25])
        np.testing.assert_array_equal(alone.log_probs[0], whole.log_probs[row, :25])
    turned = sampled(slice(None, None, -1), 60)
    np.testing.assert_array_equal(turned.ids[::-1], whole.ids)
    np.testing.assert_array_equal(sampled(slice(None), 60).ids, whole.ids)
    for other in (10, 9 + (1 << 32), (1 << 64) - 1):
        assert (sampled(slice(None), 60, step=other).ids != whole.ids).any()
    seeds[1] = 6
    changed = (sampled(slice(None), 60).ids != whole.ids).any(axis=1)
    assert changed.tolist() == [False, True, False, False]


@pytest.mark.parametrize("head", ["sketch", "full", "screen"])
def test_threads_change_nothing(decoder: LocalDecoder, tmp_path: Path, head: str) -> None:
    hidden_states = make_hidden(33, seed=8)
    two = LocalDecoder(open_index(write_whole(tmp_path, "demo"), threads=2))
    choices: list[Any] = [{}, {"top_p": 0.9}]
    for options in choices:
        one = decoder.sample(hidden_states, 5, seeds=1, head=head, **options)
        other = two.sample(hidden_states, 5, seeds=1, head=head, **options)
        np.testing.assert_equal(one[:2], other[:2])


def test_equal_rows_draw_independently_without_seeds_and_by_one_seed(decoder: LocalDecoder) -> None:
    same = np.repeat(HIDDEN[:1], 2000, axis=0)
    probs = softmax(logits_of(None)[0])
    fresh = decoder.sample(same[:2], 40).ids
    assert (fresh[0] != fresh[1]).any()
    ids = decoder.sample(same, 2, seeds=11).ids
    assert chi_square_p(counts_of(ids), probs) > 1e-3
    equal, chance = ids[1:, 0] == ids[:-1, 0], (probs**2).sum()
    assert abs(equal.mean() - chance) < 5 * np.sqrt(chance / len(equal))
    many, one = (decoder.sample(HIDDEN[:rows], 40, seeds=11, head="full") for rows in (4, 1))
    np.testing.assert_array_equal(many.ids[:1], one.ids)
    assert (many.ids[1] != decoder.sample(HIDDEN[1:2], 40, seeds=11, head="full").ids).any()


@pytest.mark.parametrize("head", ["sketch", "full", "screen"])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_normalizer_is_that_of_scores(decoder: LocalDecoder, head: str, normalizer: Any) -> None:
    spec: Any = {"head": head, "normalizer": normalizer}
    reply = decoder.sample(HIDDEN, 3, seeds=4, **spec)
    scores = decoder.score(HIDDEN, reply.ids, **spec)
    assert reply.answer.normalizer == normalizer
    found, wanted = (present(each.answer.log_z) for each in (reply, scores))
    # An id that was drawn and is no candidate has p = 0 as a target, and counts as a draw.
    known = np.isfinite(scores.log_probs).all(axis=1)
    np.testing.assert_allclose(found[known], wanted[known], rtol=2e-7)
    assert (found[~known] >= wanted[~known]).all()
    if normalizer in ("full", "sketch"):
        np.testing.assert_allclose(reply.log_probs, scores.log_probs, atol=2e-6)


@pytest.mark.parametrize("head", ["sketch", "full", "screen", "svd"])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "min_p": 0.1}], ids=str)
def test_temperature_0_is_the_best_id(decoder: LocalDecoder, head: str, filters: Any) -> None:
    for asked in (None, CONSTRAINTS["best banned"], CONSTRAINTS["some allow few"]):
        reply = decoder.sample(HIDDEN, 3, temperature=0, constraints=asked, head=head, **filters)
        wanted = decoder.topk(HIDDEN, 1, constraints=asked, head=head)
        np.testing.assert_array_equal(reply.ids, np.repeat(wanted.ids, 3, axis=1))
        assert (reply.log_probs == 0).all()
        np.testing.assert_array_equal(reply.answer.proven, wanted.answer.proven)


def test_what_a_draw_claims_and_refuses(decoder: LocalDecoder) -> None:
    def claimed(**options: Any) -> Any:
        return decoder.sample(HIDDEN, 2, seeds=0, **options).answer.proven.tolist()

    assert claimed(head="sketch") == claimed(head="full") == [True] * 4
    assert claimed(head="screen") == claimed(head="svd") == [False] * 4
    assert claimed(head="screen", top_k=5) == claimed(head="svd", top_k=5, top_p=0.5) == [False] * 4
    assert claimed(head="svd", top_p=0.5) == [True] * 4  # its fallback
    assert claimed(head="sketch", top_k=5) == claimed(head="full", top_p=0.5) == [True] * 4
    assert claimed(head="screen", top_k=100) == [True] * 4  # more than its lists hold: its fallback
    few = CONSTRAINTS["few allowed"]
    assert claimed(head="screen", constraints=few) == [True] * 4  # each is computed
    some = CONSTRAINTS["some allow few"]
    assert claimed(head="screen", constraints=some) == [True] * 4
    assert claimed(exact=True) == [True] * 4
    assert decoder.sample(HIDDEN, exact=True).answer.head in ("sketch", "full")
    for temperature in (1e-5, 1.0, 1e4):
        reply = decoder.sample(HIDDEN, 3000, seeds=0, temperature=temperature, head="sketch")
        assert ((reply.answer.scanned >= 1) & (reply.answer.scanned <= SIZE)).all()
    assert (decoder.sample(HIDDEN, head="full").answer.scanned == SIZE).all()
    assert (decoder.sample(HIDDEN, seeds=0, head="svd").answer.scanned < 128 + 60).all()
    with refused("constraints"):
        decoder.sample(HIDDEN, constraints=Constraints(allowed=[]))
    for head in ("sketch", "full", "screen"):
        spoiled = HIDDEN.copy()
        spoiled[2, 0] = 3e38
        with refused("hidden_states[2]"):
            decoder.sample(spoiled, head=head)


@pytest.mark.parametrize("head", ["sketch", "full", "screen"])
def test_equal_rows_are_drawn_alike_however_large_their_logits(tmp_path: Path, head: str) -> None:
    """Noise would be lost in logits of 1e30; so would the difference of equal log Z."""
    weight = np.zeros((40, 3), np.float32)
    weight[10:14, 0] = 1e20
    large = Softmax(weight, np.zeros(40, np.float32))
    path = write_heads(tmp_path / "large" / "1", large, "sketch", "screen")
    hidden_states = np.array([[1e10, 0, 0], [-1e10, 0, 0], [0, 0, 0]], np.float32)
    options: Any = {"seeds": range(3), "temperature": 1e-5, "head": head}
    ids = LocalDecoder(open_index(path)).sample(hidden_states, 8000, **options).ids
    alike = np.zeros((3, 40))
    alike[0, 10:14], alike[1], alike[2] = 1 / 4, 1 / 36, 1 / 40
    alike[1, 10:14] = 0
    for row, probs in zip(ids, alike, strict=True):
        assert chi_square_p(np.bincount(row, minlength=40), probs) > 1e-3
