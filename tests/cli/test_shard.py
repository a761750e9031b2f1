import json
from pathlib import Path

import numpy as np

from logitsieve.decoding import LocalDecoder, open_sharded
from logitsieve.index import open_index
from tests.cli.conftest import Run
from tests.synthetic import make_hidden


def test_an_index_is_split(index: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "lm-2" / "1"
    shown = json.loads(run("shard", index, "--shards", 2, "--out", out, "--json").stdout)
    assert [shard["folder"] for shard in shown["shards"]] == ["shards/1", "shards/2"]
    local, sharded = LocalDecoder(open_index(index)), open_sharded(out)
    hidden_states = make_hidden(3, local.index.dim)
    found, expected = sharded.topk(hidden_states, 4), local.topk(hidden_states, 4, head="full")
    np.testing.assert_array_equal(found.ids, expected.ids)
