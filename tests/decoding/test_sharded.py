import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from time import monotonic
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InternalError, ModelNotFound, ShardUnavailable, Unavailable
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.requests import Sampling
from logitsieve.api.results import RowRange
from logitsieve.decoding import LocalDecoder, Shard, ShardedDecoder, open_sharded
from logitsieve.decoding.shards import winners
from logitsieve.heads import Softmax
from logitsieve.index import open_index, split_index
from logitsieve.kernels.sampling.gumbel import gumbel_noise
from logitsieve.utils.deadline import ending_by, time_left
from tests.log_z import log_z_in
from tests.oracle import logits64
from tests.refusals import refused
from tests.server.running import Loop, config_for, running
from tests.synthetic import make_hidden, make_softmax, usual_sketch, write_heads

V, D = 1300, 16
SOFTMAX = make_softmax(vocab_size=V, dim=D)
HIDDEN = make_hidden(9, D)
SEEDS = np.arange(9, dtype=np.uint64)
SHARDS = (1, 2, 5)
CONSTRAINTS = {
    "none": None,
    "banned": Constraints(banned=list(range(200, 500))),
    "a whole shard banned": Constraints(banned=list(range(600))),
    "allowed": Constraints(allowed=[3, 255, 256, 700, 1200, 1299]),
    "mask": Constraints(mask=np.full(41, 0x1010_2F0E, np.int32), banned=[9]),
    "allowed by row": Constraints(allowed=[[row, 300 + row, 1250] for row in range(9)]),
    "biased": Constraints(biased=[5, 800], bias=[3.0, -1.5], banned=[1299]),
    "repeated": Constraints(repeated=[1, 2, 900, 1250], repetition_penalty=1.7),
}
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_k": 7},
    {"top_k": V, "top_p": 0.8},
    {"top_k": 300, "min_p": 0.05},
    {"top_k": 40, "top_p": 0.6, "min_p": 0.01, "temperature": 1.3},
    {"replace": False, "temperature": 0.8},
    {"replace": False, "top_k": 9},
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_heads(tmp_path_factory.mktemp("whole") / "lm" / "1", SOFTMAX, "sketch")


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with a sketch."""
    softmax, out = make_softmax(vocab_size=V, dim=128), tmp_path_factory.mktemp("levels")
    parts = {"sketch": usual_sketch(softmax)}
    return write_heads(out / "lm" / "1", softmax, "sketch", parts=parts)


@pytest.mark.parametrize("asked", [None, 1e-15, 1e-3, 0.25])
def test_chances_of_errors_add_up(levels: Path, tmp_path: Path, asked: float | None) -> None:
    grade: ModelSpec = {"head": "sketch"} if asked is None else {"max_error": asked}
    chance = asked or 1e-15
    decoder = LocalDecoder(open_index(levels))
    sharded = open_sharded(split_index(levels, tmp_path / "lm" / "2", 3))
    hidden_states, steps = (
        make_hidden(4, 128),
        dict[str, Any](beams_in=2, beams_out=3, head="sketch"),
    )
    for each, calls in ((decoder, 1), (sharded, 3)):
        top = each.topk(hidden_states, 5, **grade)
        np.testing.assert_array_equal(top.ids, decoder.topk(hidden_states, 5, head="full").ids)
        assert not top.answer.proven.any()
        np.testing.assert_allclose(top.answer.max_errors, calls * chance)
        step = each.beam_step(hidden_states, **{**steps, **grade}).answer
        np.testing.assert_allclose(step.max_errors, min(1.0, 2 * calls * chance))
        eight = Constraints(banned=[*range(7), V - 1])
        few = each.topk(hidden_states, 9, constraints=eight, **grade).answer
        np.testing.assert_allclose(few.max_errors, calls * chance)
        for kept in (dict[str, Any](), {"top_k": 7}):
            drawn = each.sample(hidden_states, **grade, **kept).answer
            proven = calls > 1 and not kept  # shards compute all logits of draws from all ids
            np.testing.assert_allclose(drawn.max_errors, 0.0 if proven else calls * chance)
    draws, proof = (
        decoder.sample(hidden_states, 9, seeds=3, top_p=0.9, min_p=0.05, **spec)
        for spec in (grade, ModelSpec(head="full"))
    )
    np.testing.assert_equal(draws[:2], proof[:2])
    np.testing.assert_allclose(draws.answer.max_errors, np.where(draws.answer.proven, 0.0, chance))
    assert not draws.answer.proven.all()
    assert proof.answer.proven.all()
    many = decoder.topk(
        hidden_states, 5, constraints=Constraints(banned=range(100)), **grade
    ).answer
    np.testing.assert_allclose(many.max_errors, min(1.0, 4 * chance))  # of 16, 32, 64 and 128 ids
    unsure = sharded.sample(hidden_states, top_k=7, top_p=0.5, **grade).answer
    assert unsure.max_errors.tolist() == [1.0] * 4


@pytest.fixture(scope="module")
def local(whole: Path) -> LocalDecoder:
    return LocalDecoder(open_index(whole))


@pytest.fixture(scope="module", params=SHARDS)
def sharded(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> ShardedDecoder:
    out = tmp_path_factory.mktemp("split") / f"lm-{request.param}" / "1"
    return open_sharded(split_index(whole, out, request.param))


@pytest.mark.parametrize("head", ["sketch", "full"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_best_ids(local: LocalDecoder, sharded: ShardedDecoder, name: str, head: str) -> None:
    for k in (1, 3) if "allowed" in name else (1, 5, 300):
        one, other = (
            each.topk(HIDDEN, k, constraints=CONSTRAINTS[name], head=head)
            for each in (local, sharded)
        )
        np.testing.assert_equal(one[:2], other[:2])
        assert other.answer.proven.all()
        assert (other.answer.head, other.answer.rows_missing) == (head, ())


def test_the_ends_of_what_can_be_asked_for(local: LocalDecoder, sharded: ShardedDecoder) -> None:
    one, other = local.topk(HIDDEN, V), sharded.topk(HIDDEN, V)
    np.testing.assert_array_equal(one.logits, other.logits)
    settled = other.answer.proven
    np.testing.assert_array_equal(one.ids[settled], other.ids[settled])
    options: Any = {"beams_in": 3, "beams_out": 2, "finished": np.ones(9, bool), "eos_ids": [1]}
    step, same = (each.beam_step(HIDDEN, **options) for each in (local, sharded))
    np.testing.assert_equal((step.tokens, step.scores), (same.tokens, same.scores))
    with pytest.raises(ModelNotFound):
        sharded.topk(HIDDEN, 1, model="other")


@pytest.mark.parametrize("normalizer", ["sketch", "full"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_log_z_lies_in_its_interval(sharded: ShardedDecoder, name: str, normalizer: Any) -> None:
    constraints = CONSTRAINTS[name]
    reply = sharded.topk(
        HIDDEN, 1, constraints=constraints, normalizer=normalizer, width=1e-3, head="full"
    )
    _, low, high = log_z_in(reply.answer)
    if constraints is None:
        logits = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
        truth = np.log(np.exp(logits).sum(axis=1))
        assert ((low <= truth) & (truth <= high)).all()
    assert (high - low < 1.1e-3).all()


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_scores_keep_the_width(local: LocalDecoder, sharded: ShardedDecoder, name: str) -> None:
    token_ids = np.random.default_rng(1).integers(0, V, (9, 6))
    token_ids[:, :3] = [3, 256, 1299]
    token_ids[:, 4] = token_ids[:, 3]
    one, other = (
        each.score(HIDDEN, token_ids, constraints=CONSTRAINTS[name], width=1e-5)
        for each in (local, sharded)
    )
    np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=0, atol=3e-5)
    assert not other.answer.proven.any()


@pytest.mark.parametrize("how", FILTERS, ids=str)
@pytest.mark.parametrize("name", ["none", "biased", "a whole shard banned", "allowed by row"])
def test_draws_are_those_of_the_whole(
    local: LocalDecoder, sharded: ShardedDecoder, how: dict[str, Any], name: str
) -> None:
    for head in ("full", "sketch"):
        options: Any = {"seeds": SEEDS, "step": 5, "head": head, "constraints": CONSTRAINTS[name]}
        one, other = (each.sample(HIDDEN, 40, **options, **how) for each in (local, sharded))
        proven = not {"top_p", "min_p"} & how.keys()
        assert other.answer.proven.mean() > 0.8 if proven else not other.answer.proven.any()
        np.testing.assert_array_equal(one.ids, other.ids)
        off = 1e-5 if head == "full" else 0.5  # where codes alone bound log Z
        np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=0, atol=off)
        assert (one.perturbed is None) == (other.perturbed is None) == how.get("replace", True)
        if one.perturbed is not None and other.perturbed is not None:
            np.testing.assert_allclose(one.perturbed, other.perturbed, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["none", "banned", "allowed by row"])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_beams_are_those_of_the_whole(
    local: LocalDecoder, sharded: ShardedDecoder, name: str, alpha: float
) -> None:
    options = dict[str, Any](beams_in=3, beams_out=4, lengths=np.arange(9), length_penalty=alpha)
    options |= {"constraints": CONSTRAINTS[name], "finished": np.arange(9) == 4, "eos_ids": [2]}
    scores = -np.arange(9, dtype=np.float32) / 7
    one, other = (each.beam_step(HIDDEN, scores, **options) for each in (local, sharded))
    assert other.answer.proven.all()
    choices, same = ((each.parents, each.tokens, each.finished) for each in (one, other))
    np.testing.assert_equal(choices, same)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(one.normalized_scores, other.normalized_scores, rtol=1e-6, atol=1e-5)


def test_equal_logits_of_two_shards_are_in_order_and_not_exact(tmp_path: Path) -> None:
    weight, bias = SOFTMAX.weight.copy(), SOFTMAX.bias.copy()
    weight[800], bias[800] = weight[40], bias[40] = weight[3] * 50, 0.0
    softmax = Softmax(weight, bias)
    path = write_heads(tmp_path / "tied" / "1", softmax)
    split = open_sharded(split_index(path, tmp_path / "split" / "1", 3))
    one, other = LocalDecoder(open_index(path)).topk(HIDDEN, 2), split.topk(HIDDEN, 2)
    tied = (one.ids == [40, 800]).all(axis=1)
    assert tied.any()
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(other.answer.proven, ~tied)


class Dead:
    """A decoder that does not answer."""

    def __getattr__(self, name: str) -> Any:
        def ask(*_: Any, **__: Any) -> Any:
            raise Unavailable("model: it is gone", "model")

        return ask


def asking(shard: Shard, decoder: Any) -> Shard:
    return shard._replace(decoder=decoder)


def without(sharded: ShardedDecoder, number: int, missing: Any) -> ShardedDecoder:
    shards = list(sharded.shards)
    shards[number] = asking(shards[number], Dead())
    return ShardedDecoder(shards, missing=missing)


def test_a_shard_that_does_not_answer(local: LocalDecoder, sharded: ShardedDecoder) -> None:
    number = len(sharded.shards) - 1
    lost = sharded.shards[number]
    with pytest.raises(ShardUnavailable, match=f"rows {lost.first} .. {V - 1} of the vocabulary"):
        without(sharded, number, "refuse").topk(HIDDEN, 3)
    partial = without(sharded, number, "answer")
    if number == 0:
        with pytest.raises(ShardUnavailable):
            partial.topk(HIDDEN, 3)
        return
    banned = Constraints(banned=list(range(lost.first, V)))
    missing = (RowRange(lost.first, lost.rows),)
    top, same = partial.topk(HIDDEN, 3), local.topk(HIDDEN, 3, constraints=banned)
    np.testing.assert_array_equal(top.ids, same.ids)
    assert top.answer.rows_missing == missing
    assert not top.answer.proven.any()
    scores = partial.score(HIDDEN, np.full((9, 1), lost.first))
    assert (scores.log_probs == -np.inf).all()
    assert np.isinf(log_z_in(scores.answer)[2]).all()
    draws = partial.sample(HIDDEN, 5, seeds=SEEDS)
    kept = local.sample(HIDDEN, 5, seeds=SEEDS, constraints=banned)
    np.testing.assert_array_equal(draws.ids, kept.ids)
    step = partial.beam_step(HIDDEN, beams_in=1, beams_out=2)
    for reply in (scores, draws, step):
        assert reply.answer.rows_missing == missing
        assert not reply.answer.proven.any()
    for allowed, k in (([lost.first], 1), ([0, lost.first], 2)):
        with pytest.raises(ShardUnavailable):
            partial.topk(HIDDEN, k, constraints=Constraints(allowed=allowed))


class Watched:
    """A decoder that calls `before` in the thread of each call to `topk`, and `after` it."""

    def __init__(self, decoder: Any, before: Any, after: Any = lambda: None) -> None:
        self.decoder, self.before, self.after = decoder, before, after

    def topk(self, *args: Any, **keywords: Any) -> Any:
        self.before()
        reply = self.decoder.topk(*args, **keywords)
        self.after()
        return reply


@pytest.mark.parametrize("error", [Unavailable("model: gone", "model"), InternalError("a defect")])
def test_an_error_waits_for_the_other_calls(sharded: ShardedDecoder, error: Exception) -> None:
    failed, ended = Event(), list[int]()

    def fail() -> None:
        failed.set()
        raise error

    first, *others = sharded.shards
    waiting = [
        asking(shard, Watched(shard.decoder, failed.wait, lambda: ended.append(1)))
        for shard in others
    ]
    broken = ShardedDecoder([asking(first, Watched(first.decoder, fail)), *waiting])
    with pytest.raises(ShardUnavailable if isinstance(error, Unavailable) else InternalError):
        broken.topk(HIDDEN, 3)
    assert len(ended) == len(others)


def test_shards_may_answer_in_any_order(local: LocalDecoder, sharded: ShardedDecoder) -> None:
    count, expected = len(sharded.shards), local.topk(HIDDEN, 9)
    for turn in range(count):
        order = np.roll(range(count), turn)[::-1].tolist()
        ended = [Event() for _ in order]
        before = {place: ended[order[turn - 1]] for turn, place in enumerate(order) if turn}
        shards = [
            asking(
                shard,
                Watched(
                    shard.decoder,
                    before[place].wait if place in before else lambda: None,
                    ended[place].set,
                ),
            )
            for place, shard in enumerate(sharded.shards)
        ]
        found = ShardedDecoder(shards).topk(HIDDEN, 9)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.logits, expected.logits)


@pytest.mark.parametrize(("missing", "most"), [("refuse", 60), ("answer", 30)])
def test_each_call_has_the_time_left(sharded: ShardedDecoder, missing: Any, most: float) -> None:
    seen: list[Any] = []
    shards = [
        asking(shard, Watched(shard.decoder, lambda: seen.append(time_left())))
        for shard in sharded.shards
    ]
    with ending_by(monotonic() + 60):
        ShardedDecoder(shards, missing=missing).topk(HIDDEN, 3)
    assert len(seen) == len(shards)
    assert all(most / 2 < left <= most for left in seen)


def test_a_call_that_cannot_begin_in_time_is_not_waited_for(sharded: ShardedDecoder) -> None:
    begun, ended = Semaphore(0), Event()

    def hang() -> None:
        begun.release()
        ended.wait()

    *others, last = sharded.shards
    busy = ShardedDecoder([*others, asking(last, Watched(last.decoder, hang))])
    with ThreadPoolExecutor(8) as pool:  # as many calls as a shard gets at once
        calls = [pool.submit(busy.topk, HIDDEN, 3) for _ in range(8)]
        for _ in calls:
            begun.acquire()
        with ending_by(monotonic()), pytest.raises(ShardUnavailable):
            busy.topk(HIDDEN, 3)
        ended.set()
    assert all(call.result().answer.proven.all() for call in calls)


def test_a_draw_asks_each_shard_once(sharded: ShardedDecoder) -> None:
    calls: list[int] = []

    class Counted(Watched):
        def sample(self, *args: Any, **keywords: Any) -> Any:
            calls.append(1)
            return self.decoder.sample(*args, **keywords)

    shards = [asking(shard, Counted(shard.decoder, pytest.fail)) for shard in sharded.shards]
    ShardedDecoder(shards).sample(HIDDEN, 20, seeds=SEEDS)
    assert len(calls) == len(shards)


@pytest.mark.parametrize(("off", "least"), [(0.01, 0.02), (0.0, 1.16e-13)])
@pytest.mark.parametrize(("gap", "settled"), [(0.0, False), (0.95, False), (1.05, True)])
def test_when_a_draw_is_sure(off: float, least: float, gap: float, settled: bool) -> None:
    how, noise = Sampling(1, SEEDS[:1], 0, 1.0, 0, 1.0, 0.0), np.empty((1, 3))
    ids = np.array([[5, 3, -1]], np.int32)
    gumbel_noise(how.seeds[0], how.step, ids, noise)
    logits = np.array([[gap * least, 0.0, -np.inf]]) - np.where(ids < 0, 0, noise)
    won, values, _, sure = winners(ids[:, None], logits[:, None], np.full(1, off), how)
    assert sure.tolist() == [settled]
    assert gap == 0 or (won.item(), values.item()) == (5, logits[0, 0])


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("k", lambda d: d.topk(HIDDEN, V + 1)),
        ("constraints", lambda d: d.topk(HIDDEN, 4, constraints=Constraints(allowed=[1, 2, 900]))),
        ("hidden_states", lambda d: d.topk(HIDDEN[:, :5], 1)),
        (
            "hidden_states[2]",
            lambda d: d.topk(np.where(np.arange(9)[:, None] == 2, np.nan, HIDDEN), 1),
        ),
        ("token_ids", lambda d: d.score(HIDDEN, np.full((9, 1), V))),
        ("constraints.banned", lambda d: d.topk(HIDDEN, 1, constraints=Constraints(banned=[V]))),
        ("constraints", lambda d: d.sample(HIDDEN, constraints=Constraints(allowed=[]))),
        ("normalizer", lambda d: d.topk(HIDDEN, 1, normalizer="lowrank")),
        ("eos_ids", lambda d: d.beam_step(HIDDEN, beams_in=1, beams_out=1, eos_ids=[V])),
        ("top_p", lambda d: d.sample(HIDDEN, top_p=2.0)),
        ("top_p", lambda d: d.sample(HIDDEN, top_p=0.9)),
        ("min_p", lambda d: d.sample(HIDDEN, min_p=0.1)),
        ("samples", lambda d: d.sample(HIDDEN, V + 1, replace=False)),
    ],
)
def test_requests_that_are_refused(sharded: ShardedDecoder, field: str, call: Any) -> None:
    with refused(field):
        call(sharded)


def test_shards_that_do_not_make_one_softmax_are_refused(whole: Path, tmp_path: Path) -> None:
    shards = open_sharded(split_index(whole, tmp_path / "lm" / "2", 3)).shards
    other = shards[1]._replace(softmax_sha256="0" * 64)
    for wrong, field in (
        ([], "shards"),
        (shards[1:], "shards[0]"),
        (shards[:2], "shards"),
        ((shards[0], shards[2]), "shards[1]"),
        ((shards[0], *shards), "shards[1]"),
        ((shards[0], other, shards[2]), "shards[1]"),
    ):
        with refused(field):
            ShardedDecoder(wrong)
    shutil.copytree(whole, tmp_path / "lm" / "3" / "shards" / "1")
    with refused("shards", "a whole index"):
        open_sharded(tmp_path / "lm" / "3")
    with refused("missing", "'refuse' or 'answer'"):
        ShardedDecoder(shards, missing="perhaps")  # type: ignore[arg-type]


def test_shards_of_a_server(
    local: LocalDecoder, whole: Path, tmp_path: Path, kernel_cache: Path
) -> None:
    """A folder of shards is a folder of the versions 1, 2, ... of a model named "shards"."""
    split = split_index(whole, tmp_path / "lm" / "2", 3)
    loop = Loop()
    with running(loop, config_for(split, kernel_cache=kernel_cache)) as run:
        shards = [
            shard._replace(decoder=run.client, model=f"shards@{number}")
            for number, shard in enumerate(open_sharded(split).shards, start=1)
        ]
        remote = ShardedDecoder(shards)
        one, other = local.topk(HIDDEN, 5), remote.topk(HIDDEN, 5)
        np.testing.assert_equal(one[:2], other[:2])
        drawn, same = (each.sample(HIDDEN, 8, seeds=SEEDS) for each in (remote, local))
        np.testing.assert_array_equal(drawn.ids, same.ids)
        with ending_by(monotonic()), pytest.raises(ShardUnavailable):
            remote.topk(HIDDEN, 5)
    loop.close()
