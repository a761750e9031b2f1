import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import plots, raw
from benchmarks.funnel import counted
from logitsieve.index import open_index
from logitsieve.kernels.simd.lanes import LANES
from tests.synthetic import make_hidden, make_softmax, write_heads


def test_fewer_rows_are_left_after_each_level_and_by_each_looser_grade(tmp_path: Path) -> None:
    np.save(tmp_path / "contexts.npy", make_hidden(20))
    index = open_index(write_heads(tmp_path / "lm" / "1", make_softmax(), "sketch"))
    found = counted(index, tmp_path / "contexts.npy")
    whole = -(-index.vocab_size // LANES) * LANES
    for left in found["left"].values():
        assert whole >= left[0] >= left[1] >= left[2]
        assert 1 <= left[3] <= whole
    by_grade = np.array([*found["left"].values()])
    assert (np.diff(by_grade[:, 1:3], axis=0) <= 0).all()


@pytest.mark.parametrize("name", ["funnel", "methods"])
def test_pictures_have_the_figures_of_the_raw_results(name: str, tmp_path: Path) -> None:
    """`python -m benchmarks.plots` writes them."""
    if name == "funnel":
        plots.draw_funnel(raw.load("funnel"), tmp_path / f"{name}.svg")
    else:
        plots.draw_methods(raw.load("race/gemma-3-270m"), tmp_path / f"{name}.svg")
    made, kept = (
        re.findall("<!-- (.*?) -->", (folder / f"{name}.svg").read_text(encoding="utf-8"))
        for folder in (tmp_path, plots.IMAGES)
    )
    assert made == kept
    assert {"funnel": "262,144", "methods": "sketch, proven"}[name] in made
