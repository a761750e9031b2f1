import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

pytestmark = pytest.mark.ray

SOURCE = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Tanh(), nn.Linear(8, 50))
    return model, [torch.randint(50, (3, 4)) for _ in range(6)]
"""


def test_the_command_captures_on_a_cluster(address: str, tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(SOURCE)
    written = []
    for name, more in (("many", ["--ray", address]), ("one", [])):
        program = Path(sys.executable).with_name("logitsieve")
        options = ("--module", "source.py:load", "--out", name, "--dtype", "float32", *more)
        done = subprocess.run(
            [program, "capture", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        written.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert {"00000.npy", "weight.npy", "capture.json"} < written[0].keys()
