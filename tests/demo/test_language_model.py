import json
import math
from pathlib import Path

import pytest
import torch

from demo.excerpt import EXCERPT, excerpt, read_paragraphs, split, write_paragraphs
from demo.language_model import LanguageModel, Vocabulary
from demo.train import Options, batches, mean_loss, train

DEMO = EXCERPT.parent.parent
MODEL = DEMO / "model"
WORDS = ("<unk>", "<eos>", "the", "table", ".", "(", ")", "pg", "_", "class", "N")


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(vocabulary_size=31, dim=8, layers=2).eval()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(31, (3, 12), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def test_logits_are_weight_times_hidden_plus_bias(model: LanguageModel, ids: torch.Tensor) -> None:
    torch.nn.init.normal_(model.output.bias)
    hidden, _ = model.hidden(ids)
    logits, _ = model(ids)
    assert logits.shape == (3, 12, 31)
    expected = hidden @ model.embedding.weight.T + model.output.bias
    torch.testing.assert_close(logits, expected)


@torch.inference_mode()
def test_a_hook_on_output_sees_the_hidden_states(model: LanguageModel, ids: torch.Tensor) -> None:
    seen: list[torch.Tensor] = []
    model.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(ids)
    hidden, _ = model.hidden(ids)
    torch.testing.assert_close(seen, [hidden])


@torch.inference_mode()
def test_state_carried_across_calls_equals_one_call(
    model: LanguageModel, ids: torch.Tensor
) -> None:
    first, state = model(ids[:, :5])
    second, state = model(ids[:, 5:], state)
    whole, whole_state = model(ids)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(state, whole_state)


@torch.inference_mode()
def test_saving_changes_no_more_than_float16_does(
    tmp_path: Path, model: LanguageModel, ids: torch.Tensor
) -> None:
    model.save(tmp_path)
    loaded = LanguageModel.load(tmp_path)
    assert loaded.output.weight is loaded.embedding.weight
    assert not loaded.training
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            loaded.get_parameter(name), parameter.half().float(), rtol=0, atol=0
        )
    torch.testing.assert_close(loaded(ids)[0], model(ids)[0], rtol=1e-2, atol=1e-3)


def test_the_tied_weight_is_stored_once(tmp_path: Path, model: LanguageModel) -> None:
    model.save(tmp_path)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    size = (tmp_path / "model.safetensors").stat().st_size
    assert 2 * numbers <= size < 2 * numbers + 2048


def test_vocabulary_round_trip(tmp_path: Path) -> None:
    vocabulary = Vocabulary(WORDS)
    vocabulary.save(tmp_path)
    loaded = Vocabulary.load(tmp_path)
    assert loaded.words == WORDS
    assert loaded.encode(" ".join(WORDS)) == list(range(len(WORDS)))
    assert loaded.encode("the zebra\n") == [2, 0, 1]


def test_vocabulary_holds_the_most_frequent_words() -> None:
    vocabulary = Vocabulary.most_frequent(["b c c <unk>", "b a", "c"], size=4)
    assert vocabulary.words == ("<unk>", "<eos>", "c", "b")


@pytest.mark.parametrize("words", [("a", "<eos>"), ("<unk>", "a"), ("<unk>", "<eos>", "a", "a")])
def test_vocabulary_refuses_other_word_lists(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="words"):
        Vocabulary(words)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("the table .\n", "the table.\n"),
        ("pg _ class ( the table )", "pg_class (the table)"),
        ("_ _ class _ _ ( )", "__class__()"),
        ("N . N . N . the table", "N.N.N. the table"),
    ],
)
def test_decode_joins_punctuation(tokens: str, text: str) -> None:
    vocabulary = Vocabulary(WORDS)
    assert vocabulary.decode(vocabulary.encode(tokens)) == text


def test_batches_continue_each_stream() -> None:
    ids = torch.arange(50)
    (first, targets), (second, _) = batches(ids, streams=3, steps=8)
    torch.testing.assert_close(targets, first + 1)
    torch.testing.assert_close(second[:, 0], first[:, -1] + 1)


def test_mean_loss_is_the_mean_cross_entropy() -> None:
    torch.manual_seed(2)
    logits, targets = torch.randn(20, 30, 7), torch.randint(7, (20, 30))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(mean_loss(logits, targets), expected)


def tiny_options(folder: Path, out: str, epochs: int) -> Options:
    """Text in which each letter is followed by the next one, in a ring."""
    ring = "abcdefgh" * 3
    text, held_out = folder / "text.txt.gz", folder / "held_out.txt.gz"
    secret = [f"secret {number}" for number in range(16)]
    write_paragraphs(text, [*secret, *(" ".join(ring[i : i + 8]) for i in range(8))] * 8)
    write_paragraphs(
        held_out,
        [*("unused" for _ in range(288)), *secret, *(" ".join(ring[:16]) for _ in "ab" * 8)],
    )
    return Options(
        text=[text],
        out=folder / out,
        held_out=held_out,
        vocabulary=12,
        dim=16,
        epochs=epochs,
        streams=4,
        steps=7,
        lr=0.03,
    )


def test_training_learns_and_repeats(tmp_path: Path) -> None:
    first, second = (tiny_options(tmp_path, out, epochs=8) for out in ("first", "second"))
    train(first)
    train(second)
    for name in ("model.safetensors", "vocab.txt"):
        assert (first.out / name).read_bytes() == (second.out / name).read_bytes()
    perplexities = json.loads((first.out / "training.json").read_text())["valid_perplexity"]
    assert min(perplexities) < perplexities[0] / 2


def test_held_out_paragraphs_are_not_trained_on(tmp_path: Path) -> None:
    options = tiny_options(tmp_path, "model", epochs=1)
    train(options)
    assert "secret" not in Vocabulary.load(options.out).words


def test_excerpt_is_the_same_each_time(tmp_path: Path) -> None:
    paragraphs = [f"paragraph {number}" for number in range(5000)]
    first, second = tmp_path / "first.gz", tmp_path / "second.gz"
    write_paragraphs(first, excerpt(paragraphs))
    write_paragraphs(second, excerpt(paragraphs))
    assert first.read_bytes() == second.read_bytes()
    assert read_paragraphs(first) == excerpt(paragraphs)
    assert len(excerpt(paragraphs)) == pytest.approx(len(paragraphs) / 7, rel=0.05)


def test_held_out_text_is_disjoint_from_the_rest() -> None:
    seen, held_out = split(read_paragraphs(EXCERPT))
    assert len(held_out) == pytest.approx(len(seen) / 9, rel=0.01)
    assert set(seen).isdisjoint(held_out)


def test_bundled_files_are_small() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 6_000_000
    assert EXCERPT.stat().st_size <= 600_000


@torch.inference_mode()
def test_bundled_model_reads_the_held_out_text() -> None:
    model, vocabulary = LanguageModel.load(MODEL), Vocabulary.load(MODEL)
    assert model.output.weight.shape == (len(vocabulary), 200)
    _, held_out = split(read_paragraphs(EXCERPT))
    ids = torch.tensor([vocabulary.encode("\n".join(held_out[:20]))])
    logits, _ = model(ids[:, :-1])
    loss = mean_loss(logits, ids[:, 1:])
    assert loss < math.log(200)


def test_prompts_hold_known_words_only() -> None:
    vocabulary = Vocabulary.load(MODEL)
    prompts = (DEMO / "prompts.txt").read_text(encoding="utf-8").splitlines()
    assert len(prompts) == 5
    assert not any(0 in vocabulary.encode(prompt) for prompt in prompts)
