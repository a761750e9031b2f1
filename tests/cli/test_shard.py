from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from logitsieve.index import HeadEntry, write_index
from logitsieve.index.contents import read_contents
from tests.cli.conftest import Run
from tests.synthetic import (
    certified_arrays,
    frequency_arrays,
    make_hidden,
    make_softmax,
    screen_arrays,
)

SIZE = 700


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    softmax = make_softmax(SIZE)
    heads = {
        "exact": HeadEntry(),
        "certified": HeadEntry("sketch"),
        "screen": HeadEntry("screen", {"probes": 1.0}),
        "frequency": HeadEntry("frequency"),
    }
    parts = {
        "sketch": certified_arrays(softmax),
        "screen": screen_arrays(softmax),
        "frequency": frequency_arrays(softmax),
    }
    return write_index(
        tmp_path_factory.mktemp("models") / "lm" / "1",
        softmax=softmax,
        parts=parts,
        heads=heads,
        default_head="screen",
        vocabulary=[f"word{number}" for number in range(SIZE)],
    )


@pytest.fixture(scope="module")
def split(run: Run, whole: Path) -> Path:
    out = whole.parents[1] / "lm-3" / "1"
    result = run("shard", whole, "--shards", 3, "--out", out)
    assert result.exit_code == 0
    assert "700 rows in 3 shards" in result.stdout
    assert "512 .. 699" in result.stdout
    assert "left out, as they need all of W: frequency" in result.stdout
    return out


def test_shard_as_json(run: Run, whole: Path) -> None:
    out = whole.parents[1] / "lm-2" / "1"
    facts = json.loads(run("shard", whole, "--shards", 2, "--out", out, "--json").stdout)
    assert facts["left_out"] == ["frequency"]
    assert [(shard["first"], shard["rows"]) for shard in facts["shards"]] == [(0, 256), (256, 444)]


def test_shard_with_bounds(run: Run, whole: Path) -> None:
    out = whole.parents[1] / "bounded" / "1"
    assert run("shard", whole, "--shards", 2, "--out", out, "--bounds").exit_code == 0
    assert "bounds.safetensors" in json.loads(run("verify", out, "--json").stdout)["checked"]
    assert "coarse" in run("inspect", out).stdout


def test_shard_with_replicated_rows(run: Run, whole: Path, tmp_path: Path) -> None:
    contexts, models = tmp_path / "contexts.npy", whole.parents[1]
    np.save(contexts, make_hidden(50))
    options = "shard", whole, "--shards", 2, "--replicated", 7
    refused = run(*options, "--out", models / "no" / "1")
    assert refused.exit_code == 2
    assert "replicated: got 7, allowed: none without `contexts`" in refused.stderr
    out = models / "replicated" / "1"
    assert run(*options, "--contexts", contexts, "--out", out).exit_code == 0
    assert len(read_contents(out).parts["replicated"]["ids"]) == 7


def test_verify_reads_every_shard(run: Run, split: Path) -> None:
    facts = json.loads(run("verify", split, "--json").stdout)
    files = {str(path.relative_to(split)) for path in split.rglob("*") if path.is_file()}
    assert set(facts["checked"]) == files
    assert facts["rows"] == SIZE
    alone = run("verify", split / "shards" / "2")
    assert alone.exit_code == 0
    assert "256 of 256 rows" in alone.stdout


def test_verify_names_the_damaged_shard(run: Run, split: Path) -> None:
    file = split / "shards" / "2" / "softmax.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    result = run("verify", split)
    file.write_bytes(data)
    assert result.exit_code == 1
    assert "shards/2/softmax.safetensors" in result.stderr


def test_inspect_shows_shards_and_what_a_shard_is_of(run: Run, whole: Path, split: Path) -> None:
    shown = run("inspect", split).stdout
    assert "shards/3" in shown
    assert "256 .. 511" in shown
    facts = json.loads(run("inspect", split, "--json").stdout)
    assert facts["default_head"] == "screen"
    assert [shard["rows"] for shard in facts["shards"]] == [256, 256, 188]
    alone = json.loads(run("inspect", whole, "--json").stdout)
    assert (alone["shards"], alone["shard_of"]) == ([], None)


def test_evaluate_measures_an_index_in_shards(run: Run, split: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "H.npy", make_hidden(30))
    options = ("--contexts", tmp_path / "H.npy", "--head", "certified", "--json")
    result = run("evaluate", split, *options)
    certified = json.loads(result.stdout)["heads"][0]
    assert certified["precision"]["1"]["mean"] == 1.0


def test_tune_refuses_an_index_in_shards_before_it_measures(
    run: Run, split: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "H.npy", make_hidden(30))
    result = run("tune", split, "--contexts", tmp_path / "H.npy", "--out", tmp_path / "t" / "1")
    assert result.exit_code == 2
    assert "in shards, allowed: an index in one piece" in result.stderr


def test_a_shard_alone_is_inspected_as_what_it_is(run: Run, whole: Path, split: Path) -> None:
    facts = json.loads(run("inspect", split / "shards" / "2", "--json").stdout)
    assert (facts["shard_of"]["first"], facts["shard_of"]["vocab_size"]) == (256, 700)
    assert (
        facts["shard_of"]["digest"] == json.loads((whole / "manifest.json").read_text())["digest"]
    )
    assert "auto" not in facts
    assert "shard_of.first" in run("inspect", split / "shards" / "2").stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--shards", 4), "shards: got 4, allowed: 1 to 3"),
        (("--shards", 0), "shards"),
        ((), "shards"),
    ],
)
def test_what_cannot_be_split_is_refused(
    run: Run, whole: Path, options: tuple[object, ...], reason: str
) -> None:
    result = run("shard", whole, *options, "--out", whole.parents[1] / "no" / "1")
    assert result.exit_code == 2
    assert reason in result.stderr
    assert not (whole.parents[1] / "no").exists()
