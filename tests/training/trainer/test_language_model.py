from pathlib import Path

import pytest
import torch

from logitsieve.training.trainer import LanguageModel


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(vocab_size=31, dim=8, layers=2).eval()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(31, (3, 12), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def test_logits_are_the_product_a_hook_sees(model: LanguageModel, ids: torch.Tensor) -> None:
    seen: list[torch.Tensor] = []
    model.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(ids)
    hidden_states, _ = model.hidden_states(ids)
    torch.testing.assert_close(seen, [hidden_states])
    torch.nn.init.normal_(model.output.bias)
    logits, _ = model(ids)
    assert logits.shape == (3, 12, 31)
    expected = hidden_states @ model.embedding.weight.T + model.output.bias
    torch.testing.assert_close(logits, expected)


@torch.inference_mode()
def test_two_calls_with_state_equal_one(model: LanguageModel, ids: torch.Tensor) -> None:
    first, state = model(ids[:, :5])
    second, state = model(ids[:, 5:], state)
    whole, whole_state = model(ids)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(state, whole_state)


@torch.inference_mode()
def test_saving_changes_no_more_than_float16_does_and_stores_the_tied_weight_once(
    tmp_path: Path, model: LanguageModel
) -> None:
    model.save(tmp_path)
    loaded = LanguageModel.load(tmp_path)
    assert not loaded.training
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter.half().float())
    numbers = sum(parameter.numel() for parameter in model.parameters())
    size = (tmp_path / "model.safetensors").stat().st_size
    assert 2 * numbers <= size < 2 * numbers + 2048


@torch.inference_mode()
@pytest.mark.parametrize("tied", [True, False])
def test_other_models_come_back(tmp_path: Path, ids: torch.Tensor, tied: bool) -> None:
    torch.manual_seed(3)
    made = LanguageModel(31, dim=8, layers=1, tied=tied, normalized=True).eval()
    made.save(tmp_path)
    loaded = LanguageModel.load(tmp_path)
    assert (loaded.output.weight is loaded.embedding.weight) == tied
    hidden_states, _ = loaded.hidden_states(ids)
    torch.testing.assert_close(hidden_states.norm(dim=-1), torch.ones(3, 12))
    torch.testing.assert_close(loaded(ids)[0], made(ids)[0], rtol=1e-2, atol=1e-3)
