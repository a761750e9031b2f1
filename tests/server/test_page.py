"""The examples of docs/service.md run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.server.running import Running
from tests.synthetic import make_hidden

PAGE = Path(__file__).parents[2] / "docs" / "service.md"
FOUND = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
EXAMPLES = [code for code in FOUND if "AdminClient" not in code]  # of a version yet to be built


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(measured: Running, number: int) -> None:
    names = {
        "client": measured.client,
        "decoder": measured.client,
        "hidden": make_hidden(10),
        "first": make_hidden(2),
        "targets": np.arange(10),
        "seeds": np.arange(10),
        "lengths": np.ones(10, np.int32),
    }
    code = EXAMPLES[number].replace("localhost:50051", measured.address)
    exec(compile(code, f"{PAGE.name}, example {number + 1}", "exec"), names)
