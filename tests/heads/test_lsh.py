from collections.abc import Callable

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import HEADS, Head
from logitsieve.heads._base.spec import check_structure, check_values
from logitsieve.heads.lsh import LshHead
from tests.synthetic import lsh_arrays, make_head, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(60)
EXACT = make_head("exact", SOFTMAX)
TRUE = EXACT.topk(HIDDEN, 5).ids


def head(**knobs: float) -> Head:
    return LshHead.from_arrays(SOFTMAX, lsh_arrays(SOFTMAX), fallback=EXACT, threads=1, knobs=knobs)


def found(head: Head, k: int = 1) -> list[set[int]]:
    candidates = head.candidates(HIDDEN, k)
    return [set(ids.tolist()) for ids in np.split(candidates.ids, candidates.offsets[1:-1])]


def test_every_probe_of_a_table_is_the_whole_vocabulary_and_a_cap_below_k_starves_no_row() -> None:
    top = head(tables=1, probes=8).topk(HIDDEN, 5)
    np.testing.assert_array_equal(top.ids, TRUE)
    np.testing.assert_array_equal(top.logits, EXACT.topk(HIDDEN, 5).logits)
    assert (top.scanned == SOFTMAX.vocab_size).all()
    assert not top.exact.any()
    top = head(tables=6, probes=8, candidates=3).topk(HIDDEN, 20)
    np.testing.assert_array_equal(top.scanned, np.full(60, 20))
    entry = {name: knob.high for name, knob in LshHead.knob_table.items()}
    most = head(**entry)
    assert most.knobs["tables"] == 6
    assert most.knobs["probes"] == 8
    assert head().knobs == {"tables": 6, "probes": 1, "candidates": 0}


@pytest.mark.parametrize(("knob", "values"), [("tables", [1, 2, 4, 6]), ("probes", [1, 2, 4, 8])])
def test_more_of_a_knob_finds_no_less(knob: str, values: list[int]) -> None:
    other = {"tables": 2} if knob == "probes" else {}
    before: list[set[int]] = [set()] * len(HIDDEN)
    for value in values:
        now = found(head(**{**other, knob: value}))
        assert all(less <= more for less, more in zip(before, now, strict=True))
        before = now


def test_recall_does_not_fall_as_candidates_grow() -> None:
    recalls = []
    for candidates in (1, 5, 20, 80, 300, 0):
        top = head(candidates=candidates).topk(HIDDEN, 1)
        assert (top.scanned <= (candidates or SOFTMAX.vocab_size)).all()
        recalls.append(float((top.ids[:, 0] == TRUE[:, 0]).mean()))
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[-1]


def test_rows_with_too_few_go_to_the_fallback() -> None:
    lonely = head(tables=1)
    sizes = np.array([len(ids) for ids in found(lonely)])
    k = int(np.median(sizes))
    few = sizes < k
    assert few.any()
    top = lonely.topk(HIDDEN, k)
    np.testing.assert_array_equal(top.exact, few)
    np.testing.assert_array_equal(top.ids[few], EXACT.topk(HIDDEN[few], k).ids)


def unequal_tables(arrays: dict[str, np.ndarray]) -> None:
    arrays["offsets"][8] -= 1
    arrays["offsets"][7] = min(arrays["offsets"][7], arrays["offsets"][8])


def fewer_shifts(arrays: dict[str, np.ndarray]) -> None:
    arrays["shifts"] = arrays["shifts"][:-1]


def other_bits(arrays: dict[str, np.ndarray]) -> None:
    arrays["planes"] = arrays["planes"][:, :2].copy()
    arrays["shifts"] = arrays["shifts"][:12]


def too_many_bits(arrays: dict[str, np.ndarray]) -> None:
    arrays["planes"] = np.zeros((6, 17, SOFTMAX.dim), np.float32)


def too_many_tables(arrays: dict[str, np.ndarray]) -> None:
    arrays["planes"] = np.zeros((4097, 3, SOFTMAX.dim), np.float32)


def id_too_large(arrays: dict[str, np.ndarray]) -> None:
    arrays["ids"][11] = SOFTMAX.vocab_size


def falling_offsets(arrays: dict[str, np.ndarray]) -> None:
    arrays["offsets"][3] = arrays["offsets"][5] + 1


def another_dim(arrays: dict[str, np.ndarray]) -> None:
    arrays["planes"] = arrays["planes"][:, :, :-1].copy()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (unequal_tables, "as many ids"),
        (fewer_shifts, "shifts"),
        (other_bits, "offsets"),
        (too_many_bits, "17 bits"),
        (too_many_tables, "4097 tables"),
        (id_too_large, "ids reach"),
        (falling_offsets, "offsets do not rise"),
        (another_dim, "planes"),
    ],
)
def test_arrays_that_kernels_would_misread_are_refused(
    damage: Callable[[dict[str, np.ndarray]], None], message: str
) -> None:
    arrays = lsh_arrays(SOFTMAX)
    damage(arrays)
    with pytest.raises(InvalidRequest, match=message):
        LshHead.from_arrays(SOFTMAX, arrays, fallback=EXACT, threads=1, knobs={})


def test_verifying_finds_an_id_twice_in_a_table() -> None:
    arrays = lsh_arrays(SOFTMAX)
    part = HEADS["lsh"].part
    assert part is not None
    check_values(part, arrays, lambda _: None)
    arrays["ids"][300 + 7] = arrays["ids"][300 + 8]
    check_structure(part, arrays, SOFTMAX.vocab_size, SOFTMAX.dim)
    with pytest.raises(ValueError, match="table 1 does not hold every id"):
        check_values(part, arrays, lambda _: None)
