from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from demo.gguf import ALONE, Options, race, replayed, table
from demo.truth import argmax
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.llamacpp import LlamaContext, OutputMatrix
from tests.llamacpp.small_model import Make
from tests.synthetic import make_hidden


def test_the_true_best_are_those_of_float64_logits_and_ties_go_to_the_lower_id() -> None:
    weight = make_hidden(9000, 24, seed=1)
    weight[8999], weight[17] = weight[3], weight[4] * np.float32(1 + 2e-7)
    hidden_states = np.concatenate([make_hidden(600, 24, seed=2), weight[[3, 4]]])
    matrix = OutputMatrix("output.weight", "F32", weight, weight.shape)
    logits = hidden_states.astype(np.float64) @ weight.astype(np.float64).T
    np.testing.assert_array_equal(argmax(matrix, hidden_states), logits.argmax(axis=1))


@pytest.mark.usefixtures("llama_wheel")
def test_each_way_writes_the_text(make_gguf: Make, gguf_index: Path) -> None:
    options = Options(prompt="the time of", tokens=6, rounds=2)
    with LlamaContext(make_gguf()) as context:
        runs = race(context, LocalDecoder(open_index(gguf_index)), options)
        assert list(runs) == [ALONE, "max_error 0", "max_error 1e-15", "max_error 0.001"]
        assert len({run.text for run in runs.values()}) == 1
        assert {len(run.ids) for run in runs.values()} == {6}
        assert {len(run.speeds) for run in runs.values()} == {2}
        proven = runs["max_error 0"]
        hidden_states = replayed(context, options.prompt, proven.ids)
        assert argmax(context.gguf.matrix, hidden_states).tolist() == proven.ids
        assert proven.proven == 6
    shown = Console(width=200, record=True)
    shown.print(table(runs, dict.fromkeys(runs, 6)))
    assert "6 of 6" in shown.export_text()
