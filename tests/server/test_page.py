"""Examples of docs/service.md and docs/reference-log-probs.md run; it names every option."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.cli.options import read_options
from logitsieve.server import ServeConfig
from tests.server.running import Running
from tests.synthetic import make_hidden

PAGE = Path(__file__).parents[2] / "docs" / "service.md"
TEXT = PAGE.read_text(encoding="utf-8")
FOUND = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
EXAMPLES = [code for code in FOUND if "AdminClient" not in code]  # of a version yet to be built


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(measured: Running, number: int) -> None:
    names = {"client": measured.client, "decoder": measured.client, "hidden": make_hidden(10)}
    code = EXAMPLES[number].replace("localhost:50051", measured.address)
    exec(compile(code, f"{PAGE.name}, example {number + 1}", "exec"), names)


def test_a_training_loop_gets_the_same_numbers_over_grpc(server: Running, models: Path) -> None:
    """The frozen model and the policy are tables of contexts; the last sequences are shorter."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    policy = torch.nn.Sequential(torch.nn.Embedding(300, 24), torch.nn.Linear(24, 300))
    ids = torch.randint(300, (4, 13))
    mask = torch.arange(12) < torch.tensor([12, 12, 9, 1])[:, None]
    names = {
        "rollouts": 2 * [(ids[:, :-1], ids[:, 1:], mask, torch.ones(4, 1))],
        "frozen": torch.nn.Embedding(300, 24),
        "policy": policy,
        "optimizer": torch.optim.SGD(policy.parameters(), lr=0.1),
    }
    page = PAGE.with_name("reference-log-probs.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
    for shown, used in (
        ("localhost:50051", server.address),
        ("models/lm/1", str(models / "other" / "1")),
        ('"lm"', '"other"'),
    ):
        code = code.replace(shown, used)
    exec(compile(code, "reference-log-probs.md", "exec"), names)
    reference: Any = names["reference"]
    rows, wanted = names["hidden"][mask], ids[:, 1:][mask]
    exact = reference.score(rows, wanted, normalizer="exact").log_probs[:, 0]
    np.testing.assert_allclose(names["fixed"][mask], exact, atol=1.01e-4)
    assert (names["fixed"][~mask] == 0).all()


def test_the_page_has_every_option_and_its_file_can_be_read(tmp_path: Path) -> None:
    flags = re.findall(r"`--([a-z-]+)`", TEXT.partition("## Options")[2].partition("###")[0])
    switches = {"config", *(f"no_{name}" for name in ("admin", "console", "reflection"))}
    named = {flag.replace("-", "_") for flag in flags} - switches
    assert named == {field.name for field in fields(ServeConfig)}
    [example] = re.findall(r"^```toml\n(.*?)^```", TEXT, re.M | re.S)
    file = tmp_path / "serve.toml"
    file.write_text(example, encoding="utf-8")
    ServeConfig(**read_options(file, ServeConfig))
