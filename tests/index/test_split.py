"""An index in shards: what is written, and what is refused when it is opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.heads import Softmax
from logitsieve.heads.sharded import ALIGNED, Shard
from logitsieve.index import (
    HeadEntry,
    link_index,
    open_index,
    split_index,
    verify_index,
    write_index,
)
from logitsieve.index.contents import read_contents
from logitsieve.index.manifest import MANIFEST_FILE, SHARD_ALIGNED, Manifest
from logitsieve.index.shard_parts import COUNTED_K
from logitsieve.index.sketch_rows import check_rows
from logitsieve.index.split import shard_borders, sketch_of_rows
from logitsieve.index.verify import verify_contents
from logitsieve.utils.stored import StoredMatrix
from tests.sharded import D, V, sketch_of, softmax_of
from tests.synthetic import make_hidden, make_softmax


def write(out: Path, softmax: Softmax, **options: object) -> Path:
    heads = {"exact": HeadEntry()}
    parts = {"softmax": softmax, "heads": heads, "parts": {}, "default_head": "exact"}
    return write_index(out, **{**parts, **options})  # type: ignore[arg-type]


def write_certified(out: Path, tied: bool, **options: object) -> Path:
    heads = {"exact": HeadEntry(), "certified": HeadEntry("sketch")}
    options = {"heads": heads, "default_head": "certified", **options}
    return write(out, softmax_of(tied), parts={"sketch": sketch_of(tied)}, **options)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    words = [f"w{number}" for number in range(V)]
    whole = write_certified(models / "lm" / "1", False, vocabulary=words)
    return split_index(whole, models / "lm-3" / "1", 3)


@pytest.fixture
def copy(split: Path, tmp_path: Path) -> Path:
    """A copy of the index in shards that may be spoiled."""
    return Path(shutil.copytree(split, tmp_path / "copy" / "1"))


def test_shards_hold_the_rows_in_their_order(split: Path) -> None:
    softmax, whole = softmax_of(False), read_contents(split)
    rows = [(shard.manifest.shard, shard.softmax) for shard in whole.shards]
    assert [shard.first for shard, _ in rows if shard] == [0, 512, 1280]
    np.testing.assert_array_equal(np.concatenate([each.weight for _, each in rows]), softmax.weight)
    np.testing.assert_array_equal(np.concatenate([each.bias for _, each in rows]), softmax.bias)
    assert whole.manifest.softmax_sha256 == softmax.sha256
    assert not (split / "softmax.safetensors").exists()


def test_the_same_index_gives_the_same_bytes(split: Path, tmp_path: Path) -> None:
    again = split_index(split.parents[1] / "lm" / "1", tmp_path / "again" / "1", 3)
    for path in sorted(path for path in split.rglob("*") if path.is_file()):
        assert (again / path.relative_to(split)).read_bytes() == path.read_bytes(), path


def test_a_whole_and_each_shard_open_and_verify_by_themselves(split: Path) -> None:
    with open_index(split, verify="sizes") as index:
        assert (index.vocab_size, index.heads) == (V, ("exact", "certified"))
        assert index.vocabulary is not None
        assert index.vocabulary[-1] == f"w{V - 1}"
    assert len(verify_index(split, all_rows=True)) == 2 + 3 * 3
    for number, rows in enumerate((512, 768, V - 1280), start=1):
        shard = split / "shards" / str(number)
        assert verify_index(shard) == [MANIFEST_FILE, "sketch.safetensors", "softmax.safetensors"]
        with open_index(shard, verify="sizes") as index:
            assert index.vocab_size == rows
            assert index.vocabulary is None


@pytest.mark.parametrize(("kind", "code"), [(np.float16, "F16"), (np.uint16, "BF16")])
def test_halves_are_split_as_they_are_stored(
    tmp_path: Path, kind: type[np.generic], code: str
) -> None:
    softmax = make_softmax(600, 8)
    halves = softmax.weight.astype(np.float16).view(kind)
    whole = write(tmp_path / "lm" / "1", Softmax(halves, softmax.bias))
    split = read_contents(split_index(whole, tmp_path / "lm-2" / "1", 2))
    assert {shard.manifest.dtype for shard in split.shards} == {code}
    stored = np.concatenate([shard.softmax.stored for shard in split.shards])
    np.testing.assert_array_equal(stored, halves)
    verify_index(split.path)


def test_blocks_are_split_as_they_are_stored(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (600, 34), np.uint8)  # Q8_0: 32 numbers a row
    blocks[:, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    softmax = Softmax(StoredMatrix("Q8_0", blocks), np.zeros(600, np.float32))
    whole = write(tmp_path / "lm" / "1", softmax)
    split = read_contents(split_index(whole, tmp_path / "lm-2" / "1", 2))
    stored = np.concatenate([shard.softmax.stored for shard in split.shards])
    np.testing.assert_array_equal(stored, blocks)
    verify_index(split.path)


def test_an_index_that_is_split_keeps_its_limits_of_hidden(split: Path) -> None:
    whole = softmax_of(False)
    for shard in read_contents(split).shards:
        assert shard.softmax.norms == whole.norms


@pytest.mark.parametrize(("first", "last"), [(0, V), (256, 512), (512, V), (1792, V)])
def test_part_of_a_sketch_bounds_its_rows(first: int, last: int) -> None:
    softmax = softmax_of(True)
    part = Softmax(softmax.weight[first:last].copy(), softmax.bias[first:last].copy())
    sketch = sketch_of_rows(sketch_of(True), first, last)
    check_rows(part, sketch, np.arange(last - first), lambda _: None)


def test_a_sketch_that_is_not_cut_stays_as_it_is() -> None:
    whole = sketch_of(False)
    for name, array in sketch_of_rows(whole, 0, V).items():
        np.testing.assert_array_equal(array, whole[name])


def test_borders_are_multiples_of_256() -> None:
    assert SHARD_ALIGNED == ALIGNED == 256
    assert shard_borders(1000, 1) == [0, 1000]
    assert shard_borders(1000, 4) == [0, 256, 512, 768, 1000]
    assert shard_borders(10_000, 3) == [0, 3328, 6656, 10_000]
    assert shard_borders(1, 1) == [0, 1]
    with pytest.raises(InvalidRequest, match="allowed: 1 to 4"):
        shard_borders(1000, 5)


def test_another_shard_is_refused_by_its_name(copy: Path) -> None:
    one, two = copy / "shards" / "1", copy / "shards" / "2"
    one.rename(copy / "shards" / "9")
    two.rename(one)
    with pytest.raises(IndexUnreadable, match=r"shards/1/.*another shard: rows 512 \.\. 1279"):
        read_contents(copy)


def test_a_shard_of_another_index_is_refused_by_its_name(copy: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other" / "1", softmax_of(True))
    foreign = split_index(other, tmp_path / "other-3" / "1", 3) / "shards" / "2"
    shutil.rmtree(copy / "shards" / "2")
    shutil.copytree(foreign, copy / "shards" / "2")
    digest = read_contents(other).manifest.digest[:12]
    with pytest.raises(IndexUnreadable, match=rf"shards/2/.*another shard: .* of {digest}"):
        read_contents(copy)


def test_a_whole_index_in_the_place_of_a_shard_is_refused(copy: Path, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole" / "1", softmax_of(False))
    shutil.rmtree(copy / "shards" / "3")
    shutil.copytree(whole, copy / "shards" / "3")
    with pytest.raises(IndexUnreadable, match=r"shards/3/.*a whole index, not a shard"):
        read_contents(copy)


def test_a_shard_that_is_missing_is_refused(copy: Path) -> None:
    shutil.rmtree(copy / "shards" / "2")
    with pytest.raises(IndexUnreadable, match="shards/2: no such directory"):
        read_contents(copy)


def test_bounds_are_the_sketches_of_the_shards(tmp_path: Path) -> None:
    whole = write_certified(tmp_path / "lm" / "1", False)
    split = split_index(whole, tmp_path / "lm-3" / "1", 3, bounds=True)
    verify_index(split)
    contents = read_contents(split)
    bounds = contents.parts["bounds"]
    sketches = [shard.parts["sketch"] for shard in contents.shards]
    np.testing.assert_array_equal(
        bounds["coarse"], np.concatenate([each["coarse"] for each in sketches])
    )
    fine = [each["fine"][each["order"]] for each in sketches]
    np.testing.assert_array_equal(bounds["fine"], np.concatenate(fine))


def test_replicated_rows_are_those_that_contexts_need_most_often(tmp_path: Path) -> None:
    whole = write_certified(tmp_path / "lm" / "1", False)
    contexts = make_hidden(600, D)
    split = split_index(whole, tmp_path / "lm-3" / "1", 3, contexts=contexts, replicated=50)
    verify_index(split)
    ids = read_contents(split).parts["replicated"]["ids"]
    needed = open_index(whole).head("certified").candidates(contexts, COUNTED_K).ids
    counts = np.bincount(needed, minlength=V)
    assert len(ids) == 50
    assert counts[ids].min() >= np.delete(counts, ids).max()
    largest = split_index(whole, tmp_path / "lm-4" / "1", 3, contexts=contexts)
    assert len(read_contents(largest).parts["replicated"]["ids"]) == V // 20


@pytest.mark.parametrize(
    ("part", "name"),
    [
        *(("bounds", name) for name in ("coarse", "fine", "bias", "stretch")),
        *(("replicated", name) for name in ("coarse", "fine", "bias", "weight", "triangle")),
    ],
)
def test_parts_that_do_not_follow_from_the_shards_are_refused(
    tmp_path: Path, part: str, name: str
) -> None:
    whole = write_certified(tmp_path / "lm" / "1", False)
    options: Any = {"bounds": True, "contexts": make_hidden(40, D)}
    contents = read_contents(split_index(whole, tmp_path / "lm-3" / "1", 3, **options))
    arrays = {name: array.copy() for name, array in contents.parts[part].items()}
    arrays[name].flat[5] += 1
    forged = replace(contents, parts={**contents.parts, part: arrays})
    with pytest.raises(IndexUnreadable, match=f"{name} is not that of the shards"):
        verify_contents(forged)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bounds": True, "replicated": 5}, "replicated: got 5, allowed: none without `contexts`"),
        (
            {"contexts": np.zeros((1, D)), "replicated": V},
            f"replicated: got {V}, allowed: 0 .. {V // 2}",
        ),
        ({"contexts": np.zeros((1, D + 1))}, "contexts: got D = 9"),
        ({"contexts": np.full((1, D), np.nan)}, r"contexts\[0\]"),
    ],
)
def test_options_of_replicated_rows_are_checked(tmp_path: Path, options: Any, reason: str) -> None:
    whole = write_certified(tmp_path / "lm" / "1", False)
    with pytest.raises(InvalidRequest, match=reason):
        split_index(whole, tmp_path / "lm-3" / "1", 3, **options)
    assert not (tmp_path / "lm-3" / "1").exists()


@pytest.mark.parametrize("options", [{"bounds": True}, {"contexts": np.zeros((1, D))}])
@pytest.mark.parametrize("parts", [{}, {"sketch": sketch_of(False)}])
def test_parts_beside_the_shards_need_the_head_certified(
    tmp_path: Path, options: Any, parts: Any
) -> None:
    whole = write(tmp_path / "lm" / "1", softmax_of(False), parts=parts)
    with pytest.raises(InvalidRequest, match="got given, allowed: none for an index without"):
        split_index(whole, tmp_path / "lm-3" / "1", 3, **options)


@pytest.mark.parametrize("part", ["bounds", "replicated"])
def test_parts_beside_shards_without_a_sketch_are_refused(tmp_path: Path, part: str) -> None:
    options: Any = {"bounds": True, "contexts": make_hidden(40, D)}
    whole = write_certified(tmp_path / "lm" / "1", False)
    split = split_index(whole, tmp_path / "lm-3" / "1", 3, **options)
    plain = write(tmp_path / "plain" / "1", softmax_of(False))
    other = split_index(plain, tmp_path / "plain-3" / "1", 3)
    shutil.copy(split / f"{part}.safetensors", other)
    fields = json.loads(read_manifest(other).to_json())
    fields["parts"][part] = json.loads(read_manifest(split).to_json())["parts"][part]
    write_manifest(other, fields)
    for read in (open_index, verify_index):
        with pytest.raises(IndexUnreadable, match=rf"{part}.safetensors.*no head 'certified'"):
            read(other)


def test_shards_that_do_not_make_the_matrix_are_refused(copy: Path) -> None:
    """By digests alone a whole might list shards of rows that are not its own."""
    put_in_place(copy, write_certified(copy.parents[1] / "other" / "1", True))
    read_contents(copy)
    with pytest.raises(IndexUnreadable, match="shards: they hold the matrix"):
        verify_index(copy)


def test_a_shard_of_other_heads_is_refused(copy: Path) -> None:
    put_in_place(copy, write(copy.parents[1] / "other" / "1", softmax_of(False)))
    with pytest.raises(IndexUnreadable, match=r"shards/2/manifest.json: has other heads than"):
        read_contents(copy)


def put_in_place(copy: Path, other: Path) -> None:
    """Forge shard 2 of another index to be listed."""
    foreign = split_index(other, other.parents[1] / "other-3" / "1", 3)
    shutil.rmtree(copy / "shards" / "2")
    shutil.copytree(foreign / "shards" / "2", copy / "shards" / "2")
    manifest, mine = (read_manifest(path) for path in (copy / "shards" / "2", copy))
    forged = json.loads(manifest.to_json())
    forged["shard"] |= {"softmax_sha256": mine.softmax_sha256}
    write_manifest(copy / "shards" / "2", forged)
    whole = json.loads(mine.to_json())
    whole["shards"][1]["digest"] = read_manifest(copy / "shards" / "2").digest
    write_manifest(copy, whole)


def test_what_cannot_be_split_is_refused(split: Path, tmp_path: Path) -> None:
    for source in (split, split / "shards" / "1"):
        with pytest.raises(InvalidRequest, match="a whole index"):
            split_index(source, tmp_path / "x" / "1", 2)
    with pytest.raises(InvalidRequest, match="in shards"):
        link_index(split, tmp_path / "x" / "1", calibration={})
    assert not (tmp_path / "x").exists()


def read_manifest(folder: Path) -> Manifest:
    return Manifest.from_json((folder / MANIFEST_FILE).read_bytes())


def write_manifest(folder: Path, fields: dict[str, object]) -> None:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    digest = sha256(text.encode()).hexdigest()
    text = json.dumps({**fields, "digest": digest}, sort_keys=True, separators=(",", ":"))
    (folder / MANIFEST_FILE).write_bytes(text.encode() + b"\n")


def remote_from(split: Path) -> Callable[[int], tuple[Manifest, Shard]]:
    """The shards as other processes would have them: opened alone."""

    def connect(number: int) -> tuple[Manifest, Shard]:
        index = open_index(split / "shards" / str(number), verify="sizes")
        assert index.manifest.shard is not None
        heads = {name: index.head(name) for name in index.heads}
        return index.manifest, Shard(index.manifest.shard.first, index.softmax, heads)

    return connect


def test_the_whole_opens_without_the_folders_of_its_shards(split: Path, copy: Path) -> None:
    shutil.rmtree(copy / "shards")
    with pytest.raises(IndexUnreadable, match="shards/1: no such directory"):
        open_index(copy)
    index, here = open_index(copy, connect=remote_from(split)), open_index(split)
    assert (index.digest, index.device, here.device) == (here.digest, "remote", "cpu")
    hidden = make_hidden(4, index.dim)
    for head in ("exact", "certified"):
        one, other = here.head(head).topk(hidden, 5), index.head(head).topk(hidden, 5)
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.logits, other.logits)


def test_a_shard_of_another_process_is_held_to_the_manifest(split: Path, copy: Path) -> None:
    connect = remote_from(split)
    with pytest.raises(IndexUnreadable, match=r"shards/1: another shard: rows 512 .. 1279 of"):
        open_index(copy, connect=lambda number: connect(2 if number == 1 else number))
    whole = read_contents(split.parents[1] / "lm" / "1").manifest
    with pytest.raises(IndexUnreadable, match="shards/1: a whole index, not a shard"):
        open_index(copy, connect=lambda number: (whole, connect(number)[1]))
