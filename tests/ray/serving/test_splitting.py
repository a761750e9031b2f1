from __future__ import annotations

from pathlib import Path

import pytest

from logitsieve.api.errors import InvalidRequest
from tests.ray.serving.conftest import write_lm

pytestmark = pytest.mark.ray


def test_indexes_in_one_piece_are_split_once(tmp_path: Path) -> None:
    split = pytest.importorskip("logitsieve.ray.serving.splitting").split_models
    write_lm(tmp_path / "models" / "lm" / "1")
    (tmp_path / "models" / "lm" / "aliases.json").write_text('{"stable":1}\n')
    out = split(tmp_path / "models", 3)
    assert out == tmp_path / "models-3"
    made = out / "lm" / "1"
    assert len(list((made / "shards").iterdir())) == 3
    assert (made / "bounds.safetensors").exists()
    assert (out / "lm" / "aliases.json").read_text() == '{"stable":1}\n'
    inode = (made / "manifest.json").stat().st_ino
    assert (split(tmp_path / "models", 3) / "lm" / "1" / "manifest.json").stat().st_ino == inode
    with pytest.raises(InvalidRequest, match="shards: got -1"):
        split(tmp_path / "models", -1)
