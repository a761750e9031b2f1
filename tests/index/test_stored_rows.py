"""An index of rows as they are stored: answers of every head and operation are those over the same
values in float32, bit for bit; what is kept, and what is refused."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import HEADS
from logitsieve.index import Index, open_index, verify_index
from logitsieve.index.reader import read_contents
from logitsieve.index.verify import verify_contents
from logitsieve.utils.stored import KINDS
from tests.index.samples import forge, rewrite, spoil_tensor
from tests.refusals import unreadable
from tests.stored import BLOCKS, HALVES, as_floats, reference, stored_softmax
from tests.synthetic import ARRAYS, make_hidden, write_heads

# A kind each that is read by other loops; tests of kernels/rows read all of them.
FEW = ("F16", "Q8_0", "Q5_1", "Q6_K")
EVERY_KIND = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in FEW else pytest.mark.exhaustive)
        for kind in (*BLOCKS, *HALVES)
    ],
)
EVERY_BLOCK = pytest.mark.parametrize("kind", BLOCKS)
V, D = 1100, 256
HIDDEN = make_hidden(70, D, scale=0.2)
ROWS = (1, 2, 3, 5, 70)  # of a request: alone, sharing loads, beside fours, in two blocks
FILE = "softmax.safetensors"

Pair = tuple[Index, Index]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Callable[..., Pair]:
    """(kind, threads) -> an index as stored and one of float32, of the same parts."""
    folder = tmp_path_factory.mktemp("stored")

    @cache
    def written(kind: str) -> list[Path]:
        stored = stored_softmax(kind, V, D if kind in BLOCKS else 50)
        floats = as_floats(stored)
        parts = {part.name: ARRAYS[name](floats) for name in ARRAYS if (part := HEADS[name].part)}
        return [
            write_heads(folder / kind.lower() / version, softmax, *ARRAYS, parts=parts)
            for version, softmax in (("1", stored), ("2", floats))
        ]

    @cache
    def opened(kind: str, threads: int) -> Pair:
        first, second = (
            open_index(path, threads=threads, kernel_cache=kernel_cache) for path in written(kind)
        )
        return first, second

    return opened


def hidden_for(pair: Pair, rows: int) -> np.ndarray:
    return np.ascontiguousarray(HIDDEN[:rows, : pair[0].dim])


def arrays_in(reply: Any) -> Iterator[np.ndarray]:
    """Every array of a reply, in order."""
    for value in reply:
        if isinstance(value, np.ndarray):
            yield value
        elif hasattr(value, "_fields"):
            yield from arrays_in(value)


def assert_same(
    pair: Pair, call: Callable[[Any], Any], of: Callable[[Index], Any], name: str
) -> None:
    found, expected = (list(arrays_in(call(of(index)))) for index in pair)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, name, strict=True)


@EVERY_KIND
@pytest.mark.parametrize("threads", [1, 2])
def test_heads_answer_as_over_float32(kind: str, threads: int, pairs: Callable[..., Pair]) -> None:
    pair = pairs(kind, threads)
    for rows in ROWS:
        hidden_states = hidden_for(pair, rows)
        for name in HEADS:
            head = methodcaller("head", name)
            for k in (1, 7):
                assert_same(pair, methodcaller("topk", hidden_states, k), head, name)
            assert_same(pair, methodcaller("candidates", hidden_states, 7), head, name)


TARGETS = np.arange(2 * max(ROWS)).reshape(-1, 2)
OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "topk, full": ("topk", {"k": 5, "head": "full", "normalizer": "full"}),
    "topk, candidates": ("topk", {"k": 5, "head": "full", "normalizer": "candidates"}),
    "topk, sampled": ("topk", {"k": 5, "head": "full", "normalizer": "sampled"}),
    "topk, proven": ("topk", {"k": 5, "normalizer": "full"}),
    "bounds": ("topk", {"k": 5, "head": "sketch", "normalizer": "sketch"}),
    "score": ("score", {"token_ids": TARGETS}),
    "draws, full": ("sample", {"samples": 3, "seeds": 1, "head": "full"}),
    "draws": ("sample", {"samples": 3, "seeds": 1, "exact": True}),
    "draws, cold": ("sample", {"samples": 3, "seeds": 2, "temperature": 0.5, "exact": True}),
    "nucleus": ("sample", {"samples": 3, "seeds": 3, "top_p": 0.9, "min_p": 1e-4, "exact": True}),
    "nucleus, full": ("sample", {"samples": 3, "seeds": 3, "top_p": 0.9, "head": "full"}),
    "top 9": ("sample", {"samples": 3, "seeds": 3, "top_k": 9}),
    "beams": ("beam_step", {"beams_in": 0, "beams_out": 4}),
    "beams, full": ("beam_step", {"beams_in": 1, "beams_out": 4, "head": "full"}),
}


@EVERY_KIND
def test_every_operation_answers_as_over_float32(kind: str, pairs: Callable[..., Pair]) -> None:
    pair = pairs(kind, 2)
    for (name, (method, asked)), rows in product(OPERATIONS.items(), ROWS):
        sized = {"token_ids": TARGETS[:rows], "beams_in": asked.get("beams_in") or rows}
        each = {name: sized.get(name, value) for name, value in asked.items()}
        call = methodcaller(method, hidden_for(pair, rows), **each)
        assert_same(pair, call, LocalDecoder, name)


@EVERY_KIND
def test_draws_within_a_grade_have_the_same_ids(kind: str, pairs: Callable[..., Pair]) -> None:
    """And log-probabilities whose estimates of log Z sum float32 logits of other products."""
    for index, other in [pairs(kind, 1)]:
        for more in ({}, {"temperature": 0.5}, {"top_p": 0.9, "min_p": 1e-4}):
            hidden_states, asked = hidden_for((index, other), 3), dict[str, Any](seeds=1, **more)
            one, two = (
                LocalDecoder(each).sample(hidden_states, 3, **asked) for each in (index, other)
            )
            np.testing.assert_array_equal(one.ids, two.ids)
            np.testing.assert_allclose(one.log_probs, two.log_probs, atol=1e-4)


@EVERY_KIND
def test_nothing_but_the_stored_rows_is_kept(kind: str, pairs: Callable[..., Pair]) -> None:
    index = pairs(kind, 1)[0]
    LocalDecoder(index).sample(hidden_for(pairs(kind, 1), 2), seeds=1)
    assert "weight" not in vars(index.softmax)
    assert not index.softmax.stored.flags.writeable
    assert not index.softmax.stored.flags.owndata
    block = KINDS[kind]
    part = read_contents(index.path).parts["softmax"]
    assert set(part) == {"weight", "bias"}
    assert part["weight"].nbytes == V * index.dim // block.values * block.bytes


@EVERY_KIND
def test_files_hold_the_bytes_as_they_are(kind: str, pairs: Callable[..., Pair]) -> None:
    index, floats = pairs(kind, 1)
    assert verify_index(index.path, all_rows=True)
    assert index.manifest.dtype == kind
    assert index.digest != floats.digest
    softmax = stored_softmax(kind, V, index.dim)
    np.testing.assert_array_equal(index.softmax.stored, softmax.stored)
    np.testing.assert_array_equal(index.softmax.weight, reference(softmax.matrix))
    rows = np.array([3, 1099, 0])
    np.testing.assert_array_equal(index.softmax.rows(rows), reference(softmax.matrix)[rows])
    text = f"{kind} {V} {index.dim}\n".encode()
    expected = hashlib.sha256(text + softmax.stored.tobytes() + softmax.bias.tobytes())
    assert index.manifest.softmax_sha256 == expected.hexdigest()
    with safe_open(index.path / FILE, framework="np") as file:  # any safetensors library reads it
        assert file.get_slice("weight").get_dtype() == ("U8" if kind in BLOCKS else kind)


def write_rows(folder: Path, kind: str) -> Path:
    return write_heads(folder / "1", stored_softmax(kind, 20, 256))


INFINITE = {"F16": 0x7C00, "BF16": 0x7F80}  # and NaN: utils/test_floats.py


@pytest.mark.parametrize("kind", [*BLOCKS, *HALVES])
def test_what_is_not_finite_is_refused_with_its_row(kind: str, tmp_path: Path) -> None:
    index, block = write_rows(tmp_path / "m", kind), KINDS[kind]

    def change(array: np.ndarray) -> None:
        if kind in HALVES:
            array.view(np.uint16)[13, 7] = INFINITE[kind]
            return
        place = block.scales[-1] + array.shape[1] - block.bytes  # in the last block
        array[13, place : place + 2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)

    spoil_tensor(index, "softmax", "weight", change)
    with unreadable(index / FILE, "not finite in row 13"):
        verify_contents(read_contents(index))
    softmax = stored_softmax(kind, 20, 256)
    change(softmax.stored)
    with pytest.raises(InvalidRequest, match="not finite in row 13"):
        write_heads(tmp_path / "other" / "1", softmax)


def words_of(index: Path) -> None:
    """Rows of bfloat16 under the type of their bits."""
    part = read_contents(index).parts["softmax"]
    rewrite(index, "softmax", {name: np.array(array) for name, array in part.items()})


def to(**changes: Any) -> Callable[[Path], None]:
    return lambda index: forge(index, **changes)


REFUSED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "another kind": ("Q8_0", to(dtype="Q4_0"), "[20, 144], rows of 256 numbers as Q4_0"),
    "another size": ("Q8_0", to(dim=288), "weight is U8 [20, 272], needed: [20, 306], rows of 288"),
    "blocks as halves": ("Q8_0", to(dtype="F16"), "weight is U8, needed: F16"),
    "no whole block": ("Q8_0", to(dim=250), "dim: got 250, Q8_0 needs a multiple of 32"),
    "an unknown kind": ("Q8_0", to(dtype="Q3_K"), f"got 'Q3_K', allowed: {', '.join(KINDS)}"),
    "fewer bytes": ("Q8_0", lambda index: os.truncate(index / FILE, 5000), "the manifest says"),
    "other halves": ("F16", to(dtype="BF16"), "weight is F16, needed: BF16, the manifest's dtype"),
    "halves as floats": ("BF16", to(dtype="F32"), "weight is BF16, needed: F32, the manifest's"),
    "floats as halves": ("F32", to(dtype="F16"), "weight is F32, needed: F16, the manifest's"),
    "their bits": ("BF16", words_of, "weight is U16, needed: BF16, the manifest's dtype"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_do_not_fit_are_refused_by_name(case: str, tmp_path: Path) -> None:
    kind, spoil, reason = REFUSED[case]
    index = write_rows(tmp_path / "m", kind)
    spoil(index)
    with pytest.raises(IndexUnreadable, match=re.escape(reason)) as refused:
        read_contents(index)
    assert refused.value.file.parent == index
