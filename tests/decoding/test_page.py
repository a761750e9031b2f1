"""The examples of docs/decoding.md run."""

import re
from pathlib import Path

import numpy as np

from tests.server.running import write_whole
from tests.synthetic import make_hidden

PAGE = Path(__file__).parents[2] / "docs" / "decoding.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_the_examples_run_in_their_order(tmp_path: Path) -> None:
    contexts = tmp_path / "contexts.npy"
    np.save(contexts, make_hidden(12))
    code = "\n".join(EXAMPLES).replace("models/demo/1", str(write_whole(tmp_path, "lm")))
    exec(compile(code.replace("models/demo/heldout.npy", str(contexts)), PAGE.name, "exec"), {})
