"""docs/training.md: its commands and examples run in their order, on a small text."""

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from logitsieve.cli.app import app
from logitsieve.training.trainer import LanguageModel
from tests.server.running import Loop, config_for, running
from tests.training.trainer.ring import write_ring

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
TEXT = PAGE.read_text(encoding="utf-8")
# Options that come after those of the page count more.
SMALL = {
    "train": "--vocab-size 12 --dim 8 --epochs 1 --batch-size 4 --bptt 10 --lr 0.03",
    "build": "--clusters-tried 2 --rounds 1 --steps 3 --kmeans-iterations 2 --best-effort",
    "inspect": "",
    "evaluate": "--batch 8",
}


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


LOSS, TRAINER, DECODING, OWN = fenced("python")


def executed(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, PAGE.name, "exec"), names)
    return names


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pages' relative paths lead."""
    monkeypatch.chdir(tmp_path)
    return write_ring(tmp_path / "corpus.txt.gz", 30).parent


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.mark.system
def test_the_road_from_training_to_serving(workplace: Path, loop: Loop) -> None:
    blocks = [block.replace("\\\n", " ") for block in fenced("sh")]
    lines = [line for block in blocks for line in block.splitlines()]
    names = [line.split()[1] for line in lines]
    assert names == ["train", "train", "build", "inspect", "evaluate", "serve"]
    for name, line in zip(names[:-1], lines, strict=False):
        small = "" if "--resume" in line else SMALL[name]
        result = CliRunner().invoke(app, shlex.split(f"{line} {small}")[1:])
        assert result.exit_code == 0, result.output
    said = io.StringIO()
    with redirect_stdout(said):
        found = executed(DECODING)
        remote = "from logitsieve.client import DecoderClient\n" + DECODING.replace(
            'LocalDecoder(open_index("models/lm/1"))', "DecoderClient(ADDRESS)"
        )
        with running(loop, config_for(Path("models"))) as server:
            remote = remote.replace("ADDRESS", repr(server.address))
            assert executed(remote)["words"] == found["words"]
    assert len(found["words"]) == 13
    assert len(said.getvalue().splitlines()) >= 2
    executed(OWN)


def test_the_example_of_a_loss() -> None:
    assert executed(LOSS)["weight"].shape == (10_000, 200)


def test_the_example_of_the_trainer(workplace: Path) -> None:
    small = TRAINER.replace("epochs=2", "epochs=2, vocab_size=12, dim=8, batch_size=4, bptt=10")
    assert small != TRAINER
    status = executed(small)["status"]
    assert status.steps == status.total
    assert status.best_perplexity > 1
    assert LanguageModel.load(workplace / "runs" / "uniform").lstm.hidden_size == 8


def test_the_page_names_only_options_that_there_are() -> None:
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).stdout
    known = set(re.findall(r"--[a-z][a-z0-9-]+", shown))
    text = re.sub(r"logitsieve (?!train)\w+.*", "", TEXT.replace("\\\n", " "))
    assert set(re.findall(r"--[a-z][a-z0-9-]+", text)) <= known
