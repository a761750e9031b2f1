from collections.abc import Sequence
from itertools import product
from typing import cast

import numpy as np
import pytest
import torch

from demo.decode import HEADS, Reader, Writer, readable
from logitsieve.api.decoder import Decoder
from logitsieve.training.trainer import LanguageModel, Vocabulary
from tests.client.dense import DenseDecoder
from tests.demo.tiny import WORDS, in_numpy, tiny_model

END = 1
PROMPT = "w5 w3 w4"
METHODS = "topk", "beam_step"


def writer_of(model: LanguageModel, words: int) -> tuple[Writer, DenseDecoder]:
    weight, bias = (tensor.detach().numpy() for tensor in model.output.parameters())
    decoder = DenseDecoder(weight, bias)
    vocabulary = Vocabulary(WORDS[: len(weight)])
    return Writer(
        model=in_numpy(model),
        vocabulary=vocabulary,
        decoder=cast(Decoder, decoder),
        label="demo@7",
        words=words,
    ), decoder


def completions(model: LanguageModel, words: int, beams: int) -> tuple[list[int], list[int]]:
    """The greedy one and that of the beam, as ids, the same for every head."""
    writer, _ = writer_of(model, words)
    found = []
    for each in writer.compare([PROMPT], beams):
        assert len(set(each.by_head.values())) == 1
        ids = writer.vocabulary.encode(each.by_head["full"])
        found.append(ids if len(ids) == words else [*ids, END])
    return found[0], found[1]


@torch.inference_mode()
def log_probs(model: LanguageModel, ids: Sequence[int]) -> np.ndarray:
    """Of every word after `ids`, all of which are read again."""
    logits, _ = model(torch.tensor([list(ids)]))
    return np.asarray(logits[0, -1].double().log_softmax(dim=0))


def prompt_of(model: LanguageModel) -> list[int]:
    return Vocabulary(WORDS[: len(model.output.weight)]).encode(PROMPT)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_takes_the_argmax_as_one_beam_does(seed: int) -> None:
    model = tiny_model(seed=seed)
    ids, by_one_beam = completions(model, 10, 1)
    assert by_one_beam == ids
    for place, word in enumerate(ids):
        assert word == log_probs(model, [*prompt_of(model), *ids[:place]]).argmax()
    assert len(ids) == 10 or ids[-1] == END
    assert END not in ids[:-1]


def test_decoding_stops_at_the_end_and_a_reader_goes_on_from_its_parents() -> None:
    model = tiny_model()
    torch.nn.init.constant_(model.output.bias[END : END + 1], 1000.0)
    assert completions(model, 10, 3) == ([END], [END])
    model = tiny_model()
    reader = Reader(in_numpy(model))
    reader.read([[5, 3], [7, 2]])
    hidden_states = reader.step(np.array([1, 0, 1], np.int32), np.array([4, 6, 8], np.int32))
    again = Reader(in_numpy(model)).read([[7, 2, 4], [5, 3, 6], [7, 2, 8]])
    np.testing.assert_allclose(hidden_states, again, atol=1e-6)


def test_the_writer_asks_for_each_head_of_the_model() -> None:
    writer, decoder = writer_of(tiny_model(), 3)
    found = list(writer.compare(["w1 w2", "w3"], beams=2))
    assert [each.prompt for each in found] == ["w1 w2", "w1 w2", "w3", "w3"]
    assert [each.search for each in found] == ["greedy", "beam 2"] * 2
    specs = {(method, spec["model"], spec["head"]) for method, spec in decoder.asked}
    assert specs == {(method, "demo@7", head) for method, head in product(METHODS, HEADS)}


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("the table .\n", "the table.\n"),
        ("pg _ class ( the table )", "pg_class (the table)"),
        ("_ _ class _ _ ( )", "__class__()"),
        ("N . N . N . the table", "N.N.N. the table"),
    ],
)
def test_readable_text_joins_punctuation(tokens: str, text: str) -> None:
    assert readable(tokens.replace("\n", " <eos>").split()) == text
