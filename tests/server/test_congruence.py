"""The same call in process, by a call of its own and on a stream, bit for bit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import MAX_ERROR, NORMALIZER_CODES
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.server.running import Running
from tests.synthetic import make_hidden

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def local(models: Path) -> LocalDecoder:
    return LocalDecoder(open_index(models / "demo" / "1"))


@pytest.fixture(scope="module", params=["call", "stream"])
def remote(server: Running, request: pytest.FixtureRequest) -> Iterator[Decoder]:
    if request.param == "call":
        yield server.client
        return
    with server.client.stream() as stream:
        yield stream


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for name in one._fields[:-1]:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None), name
        if theirs is not None:
            assert_equal(mine, theirs)
    for name in one.answer._fields:
        mine, theirs = getattr(one.answer, name), getattr(other.answer, name)
        if isinstance(theirs, np.ndarray):
            assert_equal(mine, theirs)
        elif not name.endswith("_ns"):
            assert mine == theirs, name


def assert_equal(one: np.ndarray, other: np.ndarray) -> None:
    np.testing.assert_array_equal(one, other)
    assert one.dtype == other.dtype


def ask_topk(decoder: Decoder, hidden_states: Any, **options: Any) -> Any:
    return decoder.topk(hidden_states, 128 if len(hidden_states) == 2 else 5, **options)


def ask_score(decoder: Decoder, hidden_states: Any, **options: Any) -> Any:
    return decoder.score(hidden_states, np.arange(2 * len(hidden_states)).reshape(-1, 2), **options)


def ask_sample(decoder: Decoder, hidden_states: Any, **options: Any) -> Any:
    seeds = np.arange(len(hidden_states), dtype=np.uint64) + np.uint64(1 << 63)
    return decoder.sample(
        hidden_states, 3, seeds=seeds, step=7, temperature=0.8, top_k=50, top_p=0.9, **options
    )


def ask_beam_step(decoder: Decoder, hidden_states: Any, **options: Any) -> Any:
    rows = np.arange(len(hidden_states))
    return decoder.beam_step(
        hidden_states,
        -rows / 3,
        beams_in=2,
        beams_out=4,
        lengths=rows,
        finished=rows % 3 == 1,
        eos_ids=[2, 4],
        length_penalty=0.6,
        **options,
    )


ASKS = {"topk": ask_topk, "score": ask_score, "sample": ask_sample, "beam_step": ask_beam_step}
EVERY = [list(range(row, 290, 2)) for row in range(4)]
CONSTRAINTS = {
    "none": None,
    "nothing": Constraints(),
    "banned": Constraints(banned=[1, 2, 3, 100]),
    "banned by row": Constraints(banned=[[1], [], [2, 3], [4]]),
    "allowed": Constraints(allowed=EVERY),
    "few allowed": Constraints(allowed=[[5, 6, 7, 8, 9, 10, 11, 12]] * 4),
    "mask": Constraints(mask=np.full((4, 10), 0x2F0FFE, np.int32), banned=[3]),
    "biased": Constraints(biased=[4, 5], bias=[3.0, -1.5]),
    "biased by row": Constraints(biased=[[4], [], [5, 6], []], bias=[[1.0], [], [2.0, 3.0], []]),
    "repeated": Constraints(repeated=[8, 9, 10], repetition_penalty=1.3),
    "all": Constraints(
        banned=[7],
        allowed=IdSets(np.arange(5, dtype=np.int32) * 20, np.arange(80, dtype=np.int32)),
        biased=[6],
        bias=[1.0],
        repeated=[[], [21], [41, 42], []],
        repetition_penalty=0.5,
    ),
}


SPECS: list[dict[str, Any]] = [
    {},
    {"head": "full"},
    {"head": "screen", "knobs": {"probes": 3}},
    {"knobs": {"probes": 2}},
    {"head": "AUTO"},
    {"head": "AUTO", "normalizer": "candidates"},
    *({"min_precision": precision} for precision in (0.5, np.float32(0.95), 1)),
    {"exact": True, "head": "AUTO"},
    {"exact": True},
    {"normalizer": "candidates"},
    {"normalizer": "full", "head": "screen"},
]
HEADS, WIDTHS = ("screen", "sketch", "full", "svd", "lsh"), (1e-9, 1e-3, np.float32(0.5))
NAMES = (None, *NORMALIZER_CODES)
OTHER: list[dict[str, Any]] = [
    *({"head": head, "normalizer": name} for head in HEADS for name in NAMES),
    *({"normalizer": name, "width": w} for name in (None, "sketch", "full") for w in WIDTHS),
    *({"max_error": error} for error in (0, 1e-15, np.float32(0.5))),
    {"head": "sketch", "max_error": 1e-3},
]
# Rows, and options.
CASES: list[tuple[int, dict[str, Any]]] = [
    *((4, {"model": "demo", "constraints": each}) for each in CONSTRAINTS.values()),
    *((rows, {"model": "demo", **spec}) for rows in (2, 64) for spec in SPECS),
    *((4, {"model": "other", **spec}) for spec in OTHER),
]


@pytest.mark.parametrize(("rows", "options"), CASES)
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_constraints_and_scored_ids(
    remote: Decoder,
    local: LocalDecoder,
    whole: LocalDecoder,
    ask: Ask,
    rows: int,
    options: dict[str, Any],
) -> None:
    here, hidden_states = {"demo": local, "other": whole}[options["model"]], make_hidden(rows)
    assert_same(ask(remote, hidden_states, **options), ask(here, hidden_states, **options))


def test_seeds_that_are_not_given_are_fresh(remote: Decoder) -> None:
    hidden_states = np.zeros((1, 24), np.float32)
    one, other = (remote.sample(hidden_states, 64, model="demo", temperature=9.0) for _ in range(2))
    assert (one.ids != other.ids).any()


def test_defaults_in_process_are_those_on_the_wire(remote: Decoder, local: LocalDecoder) -> None:
    hidden_states = make_hidden(4)
    beams: dict[str, Any] = {"beams_in": 1, "beams_out": 3}
    assert_same(
        remote.sample(hidden_states, seeds=5, model="demo"), local.sample(hidden_states, seeds=5)
    )
    assert_same(
        remote.beam_step(hidden_states, model="demo", **beams),
        local.beam_step(hidden_states, **beams),
    )


def test_draws_without_a_head(remote: Decoder, whole: LocalDecoder) -> None:
    hidden_states = make_hidden(5)
    for filters in (
        {},
        {"top_k": 9},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"log_probs": False},
        {"replace": False},
    ):
        reply = remote.sample(hidden_states, 2, seeds=3, model="other", **filters)
        assert reply.answer.head == "sketch"
        assert (reply.answer.max_errors <= MAX_ERROR).all()
        assert_same(reply, whole.sample(hidden_states, 2, seeds=3, **filters))
        proof = remote.sample(hidden_states, 2, seeds=3, model="other", exact=True, **filters)
        assert proof.answer.proven.all()
        np.testing.assert_array_equal(proof.ids, reply.ids)


def test_steps_without_a_head(remote: Decoder, whole: LocalDecoder) -> None:
    hidden_states = make_hidden(5)
    for sets, heads in ((None, ["full"]), (Constraints(banned=[1]), [*whole.index.heads])):
        reply = remote.beam_step(
            hidden_states, beams_in=5, beams_out=3, model="other", constraints=sets
        )
        assert reply.answer.head in heads
        assert_same(
            reply, whole.beam_step(hidden_states, beams_in=5, beams_out=3, constraints=sets)
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_dtypes(remote: Decoder, local: LocalDecoder, ask: Ask, dtype: Any) -> None:
    hidden_states = make_hidden(4).astype(dtype)
    assert_same(ask(remote, hidden_states, model="demo"), ask(local, hidden_states))


def test_torch_lists_views_and_single_rows(server: Running, local: LocalDecoder) -> None:
    torch = pytest.importorskip("torch")
    hidden_states = make_hidden(4)
    tensor = torch.from_numpy(hidden_states)
    for form in (
        *(
            tensor,
            tensor.bfloat16(),
            tensor.half(),
            tensor.T.contiguous().T,
            hidden_states.tolist(),
        ),
        *(np.asfortranarray(hidden_states), hidden_states[::2], hidden_states[0]),
    ):
        assert_same(server.client.topk(form, 3, model="demo"), local.topk(form, 3))


def test_the_caller_owns_the_arrays(server: Running) -> None:
    reply = server.client.topk(make_hidden(2), 3, model="demo")
    for array in (reply.ids, reply.logits, reply.answer.proven, reply.answer.scanned):
        array[:] = 0
    assert reply.answer.compute_ns > 0
    assert reply.answer.queue_ns > 0


HIDDEN = make_hidden(2)
NAN, INF = float("nan"), float("inf")
REFUSED_HIDDEN: list[Any] = [
    *(np.zeros((2, 23), np.float32), np.full((2, 24), np.nan, np.float32)),
    *(np.array([[0.0] * 23 + [np.inf]]), np.full((1, 24), 1e39), np.zeros((0, 24), np.float32)),
    *(np.zeros((2, 0), np.float32), np.zeros((1, 2, 24), np.float32)),
    *(np.zeros((1, 24), np.int32), np.zeros((1, 24), bool), [[1.0], [1.0, 2.0]], "text", None),
]
# Of each method: arguments after hidden_states, and keywords with values that are refused.
REFUSED_VALUES: dict[str, dict[str, list[Any]]] = {
    "topk": {
        "k": [0, -1, True, 1.0, "1", 301, 1 << 32, 1 << 40],
        "head": ["svd", "auto"],
        "knobs": [{"speed": 3}, {"probes": 0.5}, {"probes": NAN}, {"probes": "many"}, {"self": 1}],
        "min_precision": [0, 1.5, NAN, True, "high"],
        "exact": [1],
        "max_error": [-1e-9, 1, NAN, True, "low"],
        "normalizer": ["lowrank", "sketch", "none"],
        "width": [0, 101, "narrow"],
        "constraints": [
            Constraints(banned=[300]),
            Constraints(banned=[-1]),
            Constraints(biased=[1]),
            Constraints(biased=[1, 1], bias=[1.0, 2.0]),
        ],
    },
    "score": {
        "token_ids": [[1, 2, 3], [1.0, 2.0], [1, 300], [1, -1], [[], []]],
        "constraints": [Constraints(allowed=[[1]] * 3)],
        "normalizer": ["none"],
    },
    "sample": {
        "samples": [0, True],
        "seeds": [[1], -1, 1 << 64],
        "step": [-1],
        "temperature": [-1.0, NAN],
        "top_k": [-1],
        "top_p": [0.0],
        "min_p": [1.5],
        "replace": [0],
    },
    "beam_step": {
        "beams_in": [3, 0],
        "beams_out": [0],
        "scores": [[0.0], [0.0, NAN]],
        "lengths": [[1.0, 2.0], [1, -2]],
        "finished": [[1, 0], [True, False]],
        "eos_ids": [[-1]],
        "length_penalty": [100],
    },
}
GIVEN: dict[str, dict[str, Any]] = {
    "topk": {"k": 1},
    "score": {"token_ids": [1, 2]},
    "sample": {},
    "beam_step": {"beams_in": 2, "beams_out": 2},
}
REFUSED = [
    *(("topk", {"hidden_states": hidden_states}) for hidden_states in REFUSED_HIDDEN),
    *(("score", {"hidden_states": hidden_states}) for hidden_states in REFUSED_HIDDEN[:2]),
    *(
        (method, {name: value})
        for method, names in REFUSED_VALUES.items()
        for name, values in names.items()
        for value in values
    ),
    ("topk", {"k": 0, "min_precision": 0.9}),
    ("topk", {"k": 301, "exact": True}),
    ("topk", {"k": 2, "constraints": Constraints(allowed=[1])}),
    ("topk", {"min_precision": 0.9, "exact": True}),
    ("topk", {"max_error": 0.1, "exact": True}),
    ("topk", {"max_error": 0.1, "min_precision": 0.9}),
    ("topk", {"max_error": 0.1, "head": "screen"}),
    ("topk", {"min_precision": 0.9, "head": "screen"}),
    ("topk", {"min_precision": 0.9, "knobs": {"probes": 1}}),
    ("topk", {"exact": True, "head": "full"}),
    ("topk", {"head": "AUTO", "knobs": {"probes": 1}}),
    ("topk", {"width": 0.1, "normalizer": "candidates"}),
    ("topk", {"width": 0.1, "normalizer": "sketch"}),
]


@pytest.mark.parametrize(("method", "wrong"), REFUSED)
def test_refusals_name_the_same_field(
    remote: Decoder, local: LocalDecoder, method: str, wrong: dict[str, Any]
) -> None:
    asked = {"hidden_states": HIDDEN, **GIVEN[method], **wrong}
    with pytest.raises(InvalidRequest) as in_process:
        getattr(local, method)(**asked)
    with pytest.raises(InvalidRequest) as elsewhere:
        getattr(remote, method)(**asked, model="demo")
    assert type(elsewhere.value) is type(in_process.value)
    assert elsewhere.value.field == in_process.value.field
    assert remote.topk(make_hidden(1), 1, model="demo").ids.shape == (1, 1)
