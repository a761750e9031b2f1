import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.llamacpp.small_model import TEXT, Make

pytestmark = pytest.mark.usefixtures("llama_wheel")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_two_models_are_compared(run: Run, make_gguf: Make, text: Path, tmp_path: Path) -> None:
    first, second, file = make_gguf(), make_gguf(head="Q4_0"), tmp_path / "positions.csv"
    options = ("--text", text, "--window", 32)
    models = ("-m", second, "--reference", first)
    shown = run("compare", *models, *options, "--csv", file)
    facts = json.loads(run("compare", *models, *options, "--json").stdout)
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    kl = np.array([float(row["kl"]) for row in rows])
    same = np.array([row["best_model"] == row["best_reference"] for row in rows])
    later = [-np.array([float(row[f"log_prob_{name}"]) for row in rows]).mean()
             for name in ("reference", "model")]  # fmt: skip
    assert facts["positions"] == len(rows)
    assert f"{len(rows):,} positions" in shown.stdout
    assert facts["kl"]["mean"] == pytest.approx(kl.mean())
    assert facts["kl"]["largest"] == pytest.approx(kl.max())
    assert facts["kl"]["median"] == pytest.approx(np.median(kl))
    assert 0 < facts["kl"]["error"] < facts["kl"]["mean"]
    assert facts["same_best"]["mean"] == pytest.approx(same.mean())
    assert 0.5 < same.mean() < 1
    assert facts["perplexity"] == pytest.approx(np.exp(later))
    assert facts["log_perplexity_ratio"]["mean"] == pytest.approx(later[1] - later[0])
    assert "KL divergence, nats" in shown.stdout


def test_wrong_arguments_are_named(run: Run, make_gguf: Make, text: Path, tmp_path: Path) -> None:
    first = make_gguf()
    for arguments, field in (
        ((first, "--text", tmp_path / "none.txt"), "text"),
        ((tmp_path / "none.gguf", "--text", text), "model"),
        ((make_gguf(vocabulary=False), "--text", text), "model"),
        ((first, "--text", text, "--csv", tmp_path / "none" / "a.csv"), "csv"),
    ):
        run("compare", "--reference", first, "-m", *arguments, code=2, says=f"error: {field}: got ")
