import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.synthetic import make_softmax, write_heads


def test_verify_tells_what_it_checked(run: Run, index: Path, tmp_path: Path) -> None:
    facts = json.loads(run("verify", index, "--json").stdout)
    assert facts["ok"]
    assert {path.name for path in index.iterdir()} == set(facts["checked"])
    assert "no damage" in run("verify", index).stdout
    out = write_heads(tmp_path / "demo" / "1", make_softmax(vocab_size=5000), "sketch")
    assert json.loads(run("verify", out, "--json").stdout)["rows"] == 1024
    assert "1,024 rows checked (of 5,000), all bounds hold" in run("verify", out).stdout
    assert "5,000 rows checked (of 5,000)" in run("verify", out, "--all-rows").stdout


@pytest.mark.parametrize("name", ["softmax.safetensors", "screen.safetensors", "manifest.json"])
def test_verify_names_the_damaged_file(run: Run, index: Path, name: str) -> None:
    data = bytearray((index / name).read_bytes())
    data[-40] ^= 1
    (index / name).write_bytes(data)
    result = run("verify", index, "--json", code=1, says=name)
    assert result.stdout == ""
