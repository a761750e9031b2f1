import numpy as np
import torch

from demo.lstm import Lstm
from logitsieve.training.trainer import LanguageModel
from tests.demo.test_excerpt import MODEL
from tests.demo.tiny import in_numpy, tiny_model


@torch.inference_mode()
def test_it_reads_as_torch_does_also_from_a_state() -> None:
    """The bundled model and one that ignores less of its history."""
    random = np.random.default_rng(1)
    for model, lstm in (
        (LanguageModel.load(MODEL), Lstm.load(MODEL)),
        (own := tiny_model(), in_numpy(own)),
    ):
        np.testing.assert_array_equal(lstm.weight, model.output.weight)
        np.testing.assert_array_equal(lstm.bias, model.output.bias)
        ids = random.integers(len(lstm.bias), size=(3, 20))
        expected, _ = model.hidden_states(torch.from_numpy(ids))
        first, state = lstm.hidden_states(ids[:, :11])
        rest, _ = lstm.hidden_states(ids[:, 11:], state)
        found = np.concatenate([first, rest], axis=1)
        np.testing.assert_allclose(found, expected, atol=2e-6)
