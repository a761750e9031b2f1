from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.capture.stream_sample import SpreadSample


def kept(folder: Path, total: int, batch_rows: int, seed: int = 0) -> np.ndarray:
    """The numbers of the rows, of `total`, that a sample of 40 keeps."""
    folder.mkdir(exist_ok=True)
    sample = SpreadSample(folder / "kept.tmp", 1, 40, "float32", seed)
    stream = np.arange(total, dtype=np.float32).reshape(-1, 1)
    for start in range(0, total, batch_rows):
        sample.add(stream[start : start + batch_rows])
    assert sample.seen == total
    assert sample.write_shards(folder, 30) == 40
    assert sorted(path.name for path in folder.iterdir()) == ["00000.npy", "00001.npy"]
    rows = np.concatenate([np.load(folder / f"0000{shard}.npy") for shard in range(2)])
    return np.asarray(rows[:, 0])


@pytest.mark.parametrize("batch_rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("total", [40, 80, 81, 1000, 5000])
def test_the_sample_is_spread_ordered_and_full(tmp_path: Path, total: int, batch_rows: int) -> None:
    rows = kept(tmp_path / "out", total, batch_rows)
    assert len(rows) == 40
    assert (np.diff(rows) > 0).all()
    assert np.diff([-1, *rows, total]).max() <= 4 * max(total / 40, 1)  # cells are at most 2 x
    if total == 5000:  # not always the same position of a sequence of 16
        assert len(np.unique(rows % 16)) > 8


def test_the_sample_depends_on_seed_alone_and_needs_rows(tmp_path: Path) -> None:
    first = kept(tmp_path / "a", 3000, 10)
    np.testing.assert_array_equal(first, kept(tmp_path / "b", 3000, 999))
    assert not np.array_equal(first, kept(tmp_path / "c", 3000, 10, seed=1))
    with pytest.raises(InvalidRequest, match="batches: got no rows"):
        SpreadSample(tmp_path / "kept.tmp", 2, 40, "float16", 0).write_shards(tmp_path, 30)


@pytest.mark.parametrize(("dtype", "number"), [("float32", np.nan), ("float16", 1e5)])
def test_numbers_beyond_the_files_type(tmp_path: Path, dtype: str, number: float) -> None:
    sample = SpreadSample(tmp_path / "kept.tmp", 2, 40, dtype, 0)
    with pytest.raises(InvalidRequest, match=f"not finite as {dtype}"):
        sample.add(np.full((3, 2), number, np.float32))
