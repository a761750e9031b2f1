from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.results import BeamStepReply
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from tests.decoding.drawn import SIZES, Whole, constraints_of, edited_logits, softmax_of
from tests.log_z import interval_of, log_z_in
from tests.oracle import Hypothesis, Pair, beam_pairs, log_sum_exp, log_z_of, logits64
from tests.refusals import refused
from tests.synthetic import make_hidden, make_softmax, write_heads

PROVING = "full", "sketch"


class Asked(NamedTuple):
    """One request, with what brute force needs to answer it."""

    decoder: LocalDecoder
    hidden_states: np.ndarray
    options: dict[str, Any]
    edited: np.ndarray  # [B, V]
    plain: np.ndarray  # [B, V]

    def reply(self, **spec: Any) -> BeamStepReply:
        return self.decoder.beam_step(self.hidden_states, **self.options, **spec)

    def expected(self, most: int | None = None) -> list[list[Pair]]:
        options, beams = self.options, self.options["beams_in"]
        of_rows = [options[name] for name in ("scores", "lengths", "finished")] + [self.edited]
        numbers = (each.tolist() for each in of_rows)
        hypotheses = [
            Hypothesis(*each) for each in zip(*numbers, map(log_z_of, self.plain), strict=True)
        ]
        groups = [hypotheses[i : i + beams] for i in range(0, len(hypotheses), beams)]
        eos, alpha = options["eos_ids"], options["length_penalty"]
        return [beam_pairs(group, most or options["beams_out"], eos, alpha) for group in groups]

    def near_ties(self) -> np.ndarray:
        """[B] whether the group has pairs of two parents that are as good as equal."""
        near, chosen = [], self.options["beams_out"]
        for pairs in self.expected(self.plain.size):
            ranks, parents = np.array([(pair.rank, pair.parent) for pair in pairs] or [(0, 0)]).T
            apart = np.abs(ranks[:chosen, None] - ranks) / (1 + np.abs(ranks))
            near.append(((parents[:chosen, None] != parents) & (apart < 1e-9)).any())
        return np.repeat(near, self.options["beams_in"])


@st.composite
def requests(draw: st.DrawFn, whole: Whole, size: int, tied: bool) -> Asked:
    groups, beams = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rows, softmax = groups * beams, softmax_of(size, tied)
    hidden_states = make_hidden(rows, 8, seed=draw(st.integers(0, 5)))
    if draw(st.booleans()):
        hidden_states[:] = hidden_states[0]  # every hypothesis continues alike

    def by_row(of: st.SearchStrategy[Any], dtype: Any) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=rows, max_size=rows)), dtype)

    constraints = draw(st.none() | constraints_of(size, rows))
    plain = logits64(softmax.weight, softmax.bias, hidden_states)
    options = {
        "scores": by_row(st.floats(-20, 0, width=32) | st.just(-1.0), np.float32),
        "lengths": by_row(st.integers(0, 9), np.int32),
        "finished": by_row(st.booleans(), np.bool_) & draw(st.booleans()),
        "beams_in": beams,
        "beams_out": draw(st.sampled_from([1, 2, 3, 5, 40])),
        "eos_ids": draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=3)),
        "length_penalty": draw(st.sampled_from([0.0, 0.6, 1.0, -1.0])),
        "constraints": constraints,
    }
    made = plain if constraints is None else edited_logits(softmax, hidden_states, constraints)
    return Asked(whole(size, tied), hidden_states, options, made, plain)


def float32(value: float) -> np.float32:
    """Rounded; what is beyond the range is its end, and -inf is no pair."""
    limits = np.finfo(np.float32)
    wide = value if value == -np.inf else np.clip(value, float(limits.min), float(limits.max))
    return np.float32(wide)


def assert_pairs(reply: BeamStepReply, expected: list[list[Pair]], width: float = 0.0) -> None:
    """The pairs of a group that is not proven are as good as those; log Z is within `width`."""
    proven = reply.answer.proven.reshape(len(expected), -1)[:, 0]
    for group, pairs in enumerate(expected):
        most = reply.parents.shape[1]
        found = zip(*(array[group].tolist() for array in reply[:5]), strict=True)
        padded = pairs + [Pair(-1, -1, -np.inf, -np.inf, False)] * (most - len(pairs))
        for got, wanted in zip(found, padded, strict=True):
            parent, token, score, rank, finished = got
            if proven[group]:
                assert (parent, token, finished) == (wanted.parent, wanted.token, wanted.finished)
                off = 1e-7 + width
                np.testing.assert_allclose(score, float32(wanted.score), rtol=3e-7, atol=off)
            off = 1e-7 + 3 * width  # ranks of 10 tokens are scores times 15 / 6
            np.testing.assert_allclose(rank, float32(wanted.rank), rtol=1e-6, atol=off)
    types = [array.dtype.name for array in reply[:5]]
    assert types == ["int32", "int32", "float32", "float32", "bool"]


@given(
    data=st.data(),
    size=st.sampled_from(SIZES),
    tied=st.booleans(),
    how=st.sampled_from([*product(PROVING, PROVING)]),
)
def test_the_pairs_are_the_full_softmaxs(
    whole: Whole, data: st.DataObject, size: int, tied: bool, how: tuple[str, str]
) -> None:
    asked = data.draw(requests(whole, size, tied))
    reply = asked.reply(head=how[0], normalizer=how[1])
    answer, live = reply.answer, ~asked.options["finished"]
    assert answer.normalizer == how[1]
    found, low, high = log_z_in(answer)
    log_z = np.array([log_sum_exp(row) for row in asked.plain])
    off = 1e-6 + 2e-7 * np.abs(log_z)
    assert ((low - off <= log_z) & (log_z <= high + off))[live].all()
    if how[1] == "full":
        assert (np.abs(found - log_z) <= off)[live].all()
    assert np.isnan(found[~live]).all()
    width = 0.0 if how[1] == "full" or not live.any() else float((high - low)[live].max())
    assert_pairs(reply, asked.expected(), width)
    assert (answer.proven | asked.near_ties()).all()
    assert not answer.fallback.any()
    assert (answer.scanned[~live] == 0).all()


def test_only_groups_that_are_in_doubt_are_settled(whole: Whole) -> None:
    """Near twins in the first group, one far behind in the second, one alone in the third."""
    hidden_states, scores = make_hidden(6, 8), [-1.0, -1.0, -1.0, -90.0, -5.0, -5.0]
    hidden_states[1] = np.nextafter(hidden_states[0], np.float32(0))
    asked: Any = {"finished": np.arange(6) == 4, "eos_ids": [0], "head": "sketch"}
    asked |= {"beams_in": 2, "beams_out": 3, "normalizer": "sketch"}
    answer = whole(300, False).beam_step(hidden_states, scores, **asked).answer
    _, low, high = log_z_in(answer)
    assert (high - low < 1e-6).tolist() == [True, True] + [False] * 4
    assert answer.proven.all()


@given(data=st.data(), size=st.sampled_from(SIZES), tied=st.booleans())
def test_exact_is_never_a_lie(whole: Whole, data: st.DataObject, size: int, tied: bool) -> None:
    asked = data.draw(requests(whole, size, tied))
    beams, expected = asked.options["beams_in"], asked.expected()
    for name in ("candidates", "full"):
        reply = asked.reply(head="screen", normalizer=name)
        proven = reply.answer.proven.reshape(-1, beams)
        assert (proven.any(axis=1) == proven.all(axis=1)).all()
        for group in np.flatnonzero(proven[:, 0]).tolist():
            found = zip(reply.parents[group].tolist(), reply.tokens[group].tolist(), strict=True)
            pairs = [(pair.parent, pair.token) for pair in expected[group]]
            assert [pair for pair in found if pair[0] >= 0] == pairs


@given(data=st.data(), head=st.sampled_from(["full", "sketch", "screen"]))
def test_a_group_is_answered_as_alone(whole: Whole, data: st.DataObject, head: str) -> None:
    asked = data.draw(requests(whole, 300, False))
    together, beams = asked.reply(head=head), asked.options["beams_in"]
    for group in range(len(together.parents)):
        rows = slice(group * beams, (group + 1) * beams)
        options = dict(asked.options)
        for name in ("scores", "lengths", "finished"):
            options[name] = options[name][rows]
        if options["constraints"] is not None:
            ready = options["constraints"].for_rows(len(asked.hidden_states))
            options["constraints"] = ready.take(np.arange(rows.start, rows.stop))
        alone = asked.decoder.beam_step(asked.hidden_states[rows], **options, head=head)
        for mine, ours in zip(alone[:5], together[:5], strict=True):
            np.testing.assert_array_equal(mine[0], ours[group])
        np.testing.assert_array_equal(alone.answer.proven, together.answer.proven[rows])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"eos_ids": [17]}, "eos_ids"),
        ({"beams_in": 2}, "beams_in"),
        ({"beams_out": 0}, "beams_out"),
        ({"constraints": Constraints(banned=[17])}, "constraints.banned"),
        ({"normalizer": "none"}, "normalizer"),
    ],
)
def test_refusals(whole: Whole, options: Any, field: str) -> None:
    with refused(field):
        whole(17, False).beam_step(make_hidden(3, 8), **{"beams_in": 1, "beams_out": 2, **options})


def test_a_row_of_hidden_is_named_as_the_caller_counts(whole: Whole) -> None:
    hidden_states = make_hidden(3, 8)
    hidden_states[2, 0] = np.nan
    asked: Any = {"finished": [True, False, False], "eos_ids": [1]}
    with refused("hidden_states[2]"):
        whole(17, False).beam_step(hidden_states, beams_in=3, beams_out=2, **asked)


def test_the_pass_that_finds_log_z_finds_the_best_tokens_too(whole: Whole) -> None:
    """`scanned` says so: all of V, by either proving head, but for what has finished."""
    decoder, hidden_states = whole(300, False), make_hidden(4, 8)
    asked: Any = {"beams_in": 2, "beams_out": 3, "eos_ids": [1]}
    asked["finished"] = [False, True, False, False]
    full, bounded = (decoder.beam_step(hidden_states, head=head, **asked) for head in PROVING)
    np.testing.assert_equal(full[:5], bounded[:5])
    np.testing.assert_array_equal(full.answer.proven, bounded.answer.proven)
    assert bounded.answer.scanned.tolist() == [300, 0, 300, 300]
    rule = Constraints(banned=[299])
    banned = decoder.beam_step(hidden_states, head="sketch", constraints=rule, **asked)
    np.testing.assert_array_equal(banned.scores, bounded.scores)


@pytest.mark.parametrize("normalizer", PROVING)
@pytest.mark.parametrize("first", ["quick", "sketch", "float64"])
def test_ranks_as_close_as_log_z_is_known(whole: Whole, normalizer: Any, first: str) -> None:
    """The second hypothesis' best token ranks at the ends of the first's interval, and near."""
    decoder, hidden_states = whole(300, False), make_hidden(2, 8)
    softmax = decoder.index.softmax
    full, bounded = (cast(Any, decoder.index.head(name)) for name in PROVING)
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    log_z = [log_z_of(row) for row in logits]
    fields = {
        "quick": full.quick_log_z(hidden_states),
        "sketch": bounded.log_z(hidden_states, 1.0),
        "float64": full.log_z(hidden_states, 1.0),
    }[first]
    _, low, high = interval_of(fields, 1.0).T
    best = [Fraction(float(row.max())) for row in logits]
    level = best[1] - log_z[1] - (best[0] - log_z[0])  # by which the first is behind
    most = Fraction(float(high[0] - low[0] + high[1] - low[1]))
    asked: Any = {"beams_in": 2, "beams_out": 4, "eos_ids": [0], "head": "sketch"}
    behind = np.float32(abs(level) + most)  # what keeps all scores below 0
    for share in (-1.01, -1, -0.99, -0.5, -0.01, 0, 0.01, 0.5, 0.99, 1, 1.01):
        score = np.float32(level + Fraction(share) * most) - behind
        for towards in (-9, score, 9):
            near = np.nextafter(score, np.float32(towards))
            scores = np.array([near, -behind], np.float32)
            reply = decoder.beam_step(hidden_states, scores, normalizer=normalizer, **asked)
            group = [
                Hypothesis(float(score), 0, False, row.tolist(), one)
                for score, row, one in zip(scores, logits, log_z, strict=True)
            ]
            pairs = beam_pairs(group, 5, [0], 0.0)
            gaps = [one.rank - next_.rank for one, next_ in pairwise(pairs)]
            assert reply.answer.proven.all() or min(gaps) < 1e-11 * (1 + abs(pairs[0].rank))
            if reply.answer.proven.all():
                assert reply.parents[0].tolist() == [pair.parent for pair in pairs[:4]]
                assert reply.tokens[0].tolist() == [pair.token for pair in pairs[:4]]


def test_ties_of_different_contexts_are_open_and_of_equal_ones_are_not(tmp_path: Path) -> None:
    """W has each row with either sign, so that h and -h have one log Z, which float64 cannot tell.

    Scores a float32 apart decide again.
    """
    half = make_softmax(40, 6).weight
    softmax = Softmax(np.concatenate([half, -half]), np.zeros(80, np.float32))
    decoder = LocalDecoder(open_index(write_heads(tmp_path / "1", softmax)))
    row = make_hidden(1, 6)
    hidden_states = np.concatenate([row, -row, row, row])
    scores = np.array([-0.5, -0.5, -0.5, -0.5], np.float32)
    tied = decoder.beam_step(hidden_states, scores, beams_in=2, beams_out=3)
    assert tied.answer.proven.tolist() == [False, False, True, True]
    assert tied.parents[1].tolist() == [0, 1, 0]
    scores[[1, 3]] = np.nextafter(scores[[1, 3]], np.float32(0))
    apart = decoder.beam_step(hidden_states, scores, beams_in=2, beams_out=3)
    assert apart.answer.proven.all()
    assert apart.parents.tolist() == [[1, 0, 1]] * 2
