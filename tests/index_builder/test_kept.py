from __future__ import annotations

from concurrent.futures import BrokenExecutor
from pathlib import Path

import numpy as np
import pytest

from logitsieve.index_builder.kept import KeptBlocks, until_done

ARRAYS: tuple[np.ndarray, ...] = (
    np.arange(12, dtype=np.int32).reshape(3, 4),
    np.array([0.5, -np.inf]),
    np.empty((0, 2)),
)


def test_a_block_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    kept = KeptBlocks(tmp_path / "blocks")
    assert kept.get("label", 3) is None
    kept.put("label", 3, ARRAYS)
    found = KeptBlocks(tmp_path / "blocks").get("label", 3)
    assert found is not None
    for array, again in zip(ARRAYS, found, strict=True):
        np.testing.assert_array_equal(array, again)
        assert array.dtype == again.dtype
    assert kept.get("label", 4) is kept.get("truth", 3) is None


def test_a_block_that_is_not_as_it_was_written_is_none(tmp_path: Path) -> None:
    kept = KeptBlocks(tmp_path)
    kept.put("label", 0, ARRAYS)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert kept.get("label", 0) is None
        file.write_bytes(whole[:place])
        assert kept.get("label", 0) is None
    kept.put("label", 0, ARRAYS)
    assert kept.get("label", 0) is not None


@pytest.mark.parametrize(
    ("error", "stays"),
    [(None, False), (ValueError, False), (KeyboardInterrupt, True), (BrokenExecutor, True)],
)
def test_blocks_stay_where_another_try_may_end_otherwise(
    tmp_path: Path, error: type[BaseException] | None, stays: bool
) -> None:
    folder, raised = tmp_path / "blocks", None
    try:
        with until_done(folder):
            KeptBlocks(folder).put("label", 0, ARRAYS)
            if error:
                raise error
    except BaseException as caught:
        raised = type(caught)
    assert raised is error
    assert folder.exists() is stays


def test_another_build_may_take_the_folder_away(tmp_path: Path) -> None:
    kept = KeptBlocks(tmp_path / "gone" / "blocks")
    kept.put("label", 0, ARRAYS)
    assert kept.get("label", 0) is None
