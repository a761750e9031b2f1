from pathlib import Path

import numpy as np
import pytest

from logitsieve.index import split_index, verify_index
from logitsieve.index.reader import read_contents
from logitsieve.index.sketch_rows import codings_of
from logitsieve.index.split import shard_folders
from tests.synthetic import make_hidden, make_softmax, rotated, sketch_arrays, write_heads

V, D, SHARDS = 700, 96, 2
SOFTMAX = make_softmax(V, D)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    sketch = sketch_arrays(SOFTMAX, rotated(SOFTMAX, make_hidden(64, D)), 32)
    return write_heads(tmp_path / "lm" / "1", SOFTMAX, "sketch", parts={"sketch": sketch})


def test_the_sketch_of_a_shard_has_its_rows_of_the_whole(whole: Path, tmp_path: Path) -> None:
    sketch = read_contents(whole).parts["sketch"]
    wanted, first = list(codings_of(sketch, np.arange(V))), 0
    for path in shard_folders(split_index(whole, tmp_path / "lm" / "2", SHARDS)):
        verify_index(path, all_rows=True)
        contents = read_contents(path)
        own, size = contents.parts["sketch"], contents.manifest.vocab_size
        assert own.keys() == sketch.keys()
        mine = slice(first, first + size)
        found = codings_of(own, np.arange(size))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.codes, other.codes[mine])
            np.testing.assert_array_equal(one.scales, other.scales[mine])
            np.testing.assert_array_equal(one.rests, other.rests[mine])
        first += size
    assert first == V
