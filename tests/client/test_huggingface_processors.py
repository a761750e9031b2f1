import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as theirs

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.huggingface import GrammarMask, attach
from logitsieve.client.huggingface_processors import EDITORS, WARPERS, draw_options
from tests.client.dense import attach_dense, decoder_of, generate
from tests.client.tiny_models import EOS, VOCABULARY, prompts
from tests.oracle import chi_square_p
from tests.refusals import refused

DRAWS = 8_000
DRAWING = {"do_sample": True, "top_k": 0}
# Any law is kept: filters by the decoder's own, edits by constraints, and lists by their warpers.
LAWS: list[dict[str, Any]] = [
    {"temperature": 1.4, "top_p": 0.8, "min_p": 0.1, "renormalize_logits": True},
    {"remove_invalid_values": True, "temperature": 0.7},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.8, "min_p": 0.05},
    {"top_k": 40, "typical_p": 0.6},
    {"top_h": 0.5},
    {"repetition_penalty": 0.6, "top_p": 0.9, "bad_words_ids": [[7], [9, 12]]},
    {"sequence_bias": [[[200], 4.5], [[5], -1.0]], "min_p": 0.01},
    {"exponential_decay_length_penalty": (-1, 1.5), "encoder_repetition_penalty": 1.4},
    {"prefix_allowed_tokens_fn": lambda _, ids: [EOS, *range(20, 90)], "repetition_penalty": 1.3},
]
MORE: list[dict[str, Any]] = [
    *({}, {"temperature": 1.5}, {"top_p": 0.9}, {"min_p": 0.05}),
    *({"top_k": 12}, {"repetition_penalty": 1.8}),
    {"bad_words_ids": [[each] for each in range(2, 390)], "min_new_tokens": 1},
    {"sequence_bias": [[[token], 3.0] for token in range(2, 300)], "repetition_penalty": 1.5},
    {"forced_eos_token_id": EOS},
]
LAWS += [pytest.param(each, marks=pytest.mark.exhaustive) for each in MORE]  # type: ignore[misc]


@pytest.mark.parametrize("options", LAWS, ids=lambda options: "+".join(options) or "plain")
def test_draws_follow_the_plain_models_law(language_model: Any, options: dict[str, Any]) -> None:
    chosen = DRAWING | options | {"max_new_tokens": 1}
    kept = {"return_dict_in_generate": True, "output_scores": True}
    with torch.no_grad():
        scores = language_model.generate(**prompts(1), **chosen, **kept).scores[0]
    expected = scores[0].double().softmax(0).numpy()
    torch.manual_seed(1)
    with attach_dense(language_model):
        drawn = language_model.generate(**prompts(1), **chosen, num_return_sequences=DRAWS)
    counts = np.bincount(drawn[:, -1].numpy(), minlength=VOCABULARY)
    distance = np.abs(counts / DRAWS - expected).sum() / 2
    assert distance < 0.02 + np.sqrt(expected / DRAWS).sum() / 2
    assert chi_square_p(counts, expected) > 1e-3


def test_draws_are_those_of_the_decoder_under_the_seeds_of_torch(language_model: Any) -> None:
    decoder, ids = decoder_of(language_model), prompts()["input_ids"].repeat(4, 1)
    filters: dict[str, Any] = {"temperature": 1.3, "top_p": 0.95, "min_p": 0.001}
    with attach(language_model, decoder):
        torch.manual_seed(3)
        drawn = language_model.generate(ids, max_new_tokens=1, **DRAWING, **filters)[:, -1]
        one, other = (
            language_model.generate(ids, max_new_tokens=4, **DRAWING, **filters) for _ in range(2)
        )
    torch.manual_seed(3)
    seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (len(ids),)).numpy().view(np.uint64)
    with torch.no_grad():
        hidden_states = language_model.transformer(ids).last_hidden_state[:, -1].numpy()
    expected = decoder.sample(hidden_states, seeds=seeds, **filters)
    assert drawn.tolist() == expected.ids[:, 0].tolist()
    assert len({tuple(row) for row in one[::3].tolist()}) > 1  # equal prompts draw by themselves
    assert not torch.equal(one, other)


def test_each_processor_of_transformers_is_served_or_on_the_page_of_the_refused() -> None:
    page = Path(__file__).parents[2].joinpath("docs/huggingface.md").read_text()
    refused = set(re.findall(r"`(\w+Processor)`", page))
    theirs_all = {
        name: kind
        for name, kind in vars(theirs).items()
        if isinstance(kind, type) and issubclass(kind, LogitsProcessor)
    }
    del theirs_all["LogitsProcessor"]
    served = {each.__name__ for each in (*EDITORS, *WARPERS)} | {"WhisperNoSpeechDetection"}
    guided = "UnbatchedClassifierFreeGuidanceLogitsProcessor"  # `guidance_scale` alone makes it
    assert theirs_all.keys() - served - {guided} == refused


@pytest.mark.parametrize(
    ("edits", "fields"),
    [
        ({}, None),
        ({"bad_words_ids": [[7]]}, {"banned"}),
        ({"repetition_penalty": 1.3, "suppress_tokens": [5]}, {"banned", "repeated"}),
        ({"prefix_allowed_tokens_fn": lambda *_: [3, 4]}, {"allowed"}),
        ({"sequence_bias": [[[9], 1.0]], "repetition_penalty": 1.3}, {"biased", "bias"}),
    ],
)
def test_edits_are_constraints(
    language_model: Any, edits: dict[str, Any], fields: set[str] | None
) -> None:
    decoder, given = decoder_of(language_model), []
    sample = decoder.sample

    def watched(*args: Any, constraints: Any = None, **options: Any) -> Any:
        given.append(constraints)
        return sample(*args, constraints=constraints, **options)

    decoder.sample = watched  # type: ignore[method-assign]
    with attach(language_model, decoder):
        generate(language_model, **DRAWING, **edits, max_new_tokens=1)
    [constraints] = given
    found = (
        None
        if constraints is None
        else {name for name, value in vars(constraints).items() if value is not None}
        - {"repetition_penalty"}
    )
    assert found == fields


def test_scores_are_log_probabilities_of_the_drawn_ids(language_model: Any) -> None:
    options = DRAWING | {"temperature": 1.2, "repetition_penalty": 1.4, "max_new_tokens": 5}
    kept = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    with attach_dense(language_model):
        torch.manual_seed(4)
        made = language_model.generate(**prompts(), **options, **kept)
        torch.manual_seed(4)
        assert language_model.generate(**prompts(), **options).equal(made.sequences)
    new = made.sequences[:, prompts()["input_ids"].shape[1] :]
    torch.manual_seed(4)
    for step, (scores, logits) in enumerate(zip(made.scores, made.logits, strict=True)):
        ids = made.sequences[:, : made.sequences.shape[1] - new.shape[1] + step]
        with torch.no_grad():
            full = language_model(ids).logits[:, -1]
        penalised = theirs.RepetitionPenaltyLogitsProcessor(1.4)(ids, full.clone()) / 1.2
        drawn = new[:, step, None]
        normalised = penalised.log_softmax(1)
        for ours, expected in ((scores, normalised), (logits, full)):
            log_probs = expected.log_softmax(1).gather(1, drawn)
            torch.testing.assert_close(ours.log_softmax(1).gather(1, drawn), log_probs)
            torch.testing.assert_close(ours.gather(1, drawn), expected.gather(1, drawn))


class Raised(LogitsProcessor):
    """One of the user's: id 40 gains 3."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 40] += 3
        return scores


def test_processors_of_the_users_own_are_named(language_model: Any) -> None:
    options = {"logits_processor": LogitsProcessorList([Raised()])}
    expected = generate(language_model, **options)
    with attach_dense(language_model), pytest.raises(InvalidRequest, match="Raised"):
        generate(language_model, **options)
    with attach_dense(language_model, editors=(Raised,)):
        assert generate(language_model, **options) == expected


class Halved(theirs.TopPLogitsWarper):
    """One of the user's: a nucleus of half the mass."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        halved: torch.Tensor = theirs.TopPLogitsWarper(self.top_p / 2)(input_ids, scores)
        return halved


@pytest.mark.parametrize("top_k", [0, 10])
def test_warpers_of_the_users_own_are_refused(language_model: Any, top_k: int) -> None:
    options = {"logits_processor": LogitsProcessorList([Halved(0.9)]), "do_sample": True}
    with attach_dense(language_model), pytest.raises(InvalidRequest, match="Halved"):
        generate(language_model, **options, top_k=top_k)


def test_editors_of_the_users_own_are_part_of_the_law(language_model: Any) -> None:
    options = DRAWING | {"logits_processor": LogitsProcessorList([Raised()]), "top_p": 0.01}
    best = generate(language_model, logits_processor=LogitsProcessorList([Raised()]))
    with attach_dense(language_model, editors=(Raised,)):
        assert generate(language_model, **options) == best


@pytest.mark.parametrize(
    ("processors", "field"),
    [
        ([theirs.TopPLogitsWarper(0.9), theirs.TemperatureLogitsWarper(0.5)], "logits_processor"),
        ([theirs.TopPLogitsWarper(0.9), theirs.TopKLogitsWarper(5)], "logits_processor"),
        ([theirs.LogitNormalization(), Raised()], "logits_processor"),
        ([theirs.TemperatureLogitsWarper(0.5)] * 2, "logits_processor"),
        ([theirs.TopPLogitsWarper(0.9, min_tokens_to_keep=3)], "top_p"),
        ([theirs.MinPLogitsWarper(0.9, filter_value=-5.0)], "min_p"),
        ([theirs.TypicalLogitsWarper(0.9)], "typical_p"),
    ],
)
def test_warpers_beyond_a_draw_are_refused(processors: list[LogitsProcessor], field: str) -> None:
    with refused(field):
        draw_options(processors)


class Followed(LogitsProcessor):
    """A grammar's processor, of the shape of xgrammar's and outlines': each call is a step."""

    def __init__(self, allowed: list[list[int]]) -> None:
        self.allowed, self.calls = allowed, 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        if self.calls:
            assert set(input_ids[:, -1].tolist()) <= set(self.allowed[self.calls - 1])
        forbidden = torch.ones(scores.shape[1], dtype=torch.bool)
        forbidden[self.allowed[self.calls]] = False
        self.calls += 1
        return scores.masked_fill_(forbidden, -torch.inf)


Followed.__module__ = "xgrammar.contrib.hf"
STEPS = [[*range(start, VOCABULARY, 20)] for start in (2, 3, 4)]


@pytest.mark.parametrize(
    "search", [{}, DRAWING, DRAWING | {"top_p": 0.8}, {"do_sample": True, "top_k": 5}], ids=str
)
def test_grammars_of_other_packages_are_masks(
    language_model: Any, monkeypatch: Any, search: dict[str, Any]
) -> None:
    given, asked = prompts() | {"max_new_tokens": 3} | search, []
    topk = language_model  # keeps the plain model's own choice beside the decoder's
    torch.manual_seed(4)
    expected = topk.generate(**given, logits_processor=[Followed(STEPS)])
    decoder, processor = decoder_of(language_model), Followed(STEPS)
    for name in ("topk", "sample"):
        method = getattr(decoder, name)

        def watched(*args: Any, _method: Any = method, constraints: Any = None, **more: Any) -> Any:
            asked.append(constraints)
            return _method(*args, constraints=constraints, **more)

        monkeypatch.setattr(decoder, name, watched)
    with attach(language_model, decoder):
        asked.clear()
        torch.manual_seed(4)
        made = language_model.generate(**given, logits_processor=[processor])
    assert processor.calls == 3
    for place, allowed in enumerate(STEPS):
        assert set(made[:, place - 3].tolist()) <= set(allowed)
    masks = [each for each in asked if each is not None]
    assert masks
    assert all(each.mask is not None and each.allowed is None for each in masks)
    if not search.get("do_sample"):
        torch.testing.assert_close(made, expected)


class ByLast(LogitsProcessor):
    """A processor of a grammar that reads each hypothesis: its last id tells what may follow."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        every = torch.arange(scores.shape[1])
        forbidden = torch.ones(scores.shape, dtype=torch.bool)
        for row, last in enumerate(input_ids[:, -1].tolist()):
            share = (2, 7, 60, 190)[last % 4]  # one in so many
            forbidden[row] = (every * (1 + last)) % 383 % share != last % min(share, 3)
            forbidden[row, 2 + last % 380] = False
        return scores.masked_fill_(forbidden, -torch.inf)


ByLast.__module__ = "outlines.backends.of_tests"
BEAMS: list[dict[str, Any]] = [
    {},
    {"output_scores": True},
    {"renormalize_logits": True},
    {"do_sample": True, "top_k": 4, "temperature": 1.2},
]


@pytest.mark.parametrize("search", BEAMS, ids=str)
def test_beams_follow_a_mask_for_each_hypothesis(
    language_model: Any, search: dict[str, Any]
) -> None:
    given = prompts() | {"num_beams": 5, "num_return_sequences": 3, "max_new_tokens": 7}
    given |= {"return_dict_in_generate": True} | search
    decoder, asked, made = decoder_of(language_model), [], []
    topk = decoder.topk

    def watched(*args: Any, constraints: Any = None, **more: Any) -> Any:
        asked.append(constraints)
        return topk(*args, constraints=constraints, **more)

    decoder.topk = watched  # type: ignore[method-assign]
    for context in (nullcontext(), attach(language_model, decoder, head="full")):
        torch.manual_seed(4)
        with context:
            made.append(language_model.generate(**given, logits_processor=[ByLast()]))
    expected, found = made
    torch.testing.assert_close(found.sequences, expected.sequences)
    if "output_scores" in search:
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)
    masks = [each.mask for each in asked if each is not None]
    assert masks
    assert {len(mask) for mask in masks} == {len(prompts()["input_ids"]) * 5}


@pytest.mark.parametrize("renormalize", [False, True])
def test_beams_compare_what_bans_leave(language_model: Any, renormalize: bool) -> None:
    """Half of the mass is banned, outside of the best ids too."""
    banned = {"bad_words_ids": [[each] for each in range(2, VOCABULARY, 2)]}
    options = banned | {"num_beams": 5, "renormalize_logits": renormalize}
    expected = generate(language_model, **options)
    with attach_dense(language_model, head="full"):
        assert generate(language_model, **options) == expected


def test_a_processor_of_the_users_own_may_be_a_mask(language_model: Any) -> None:
    class Own(ByLast):
        """Edits no single ids by itself."""

    expected = generate(language_model, logits_processor=[Own()])
    with attach_dense(language_model):
        with refused("logits_processor", "Own"):
            generate(language_model, logits_processor=[Own()])
        assert generate(language_model, logits_processor=[GrammarMask(Own())]) == expected


def test_a_processor_of_xgrammar_itself_is_a_mask(language_model: Any) -> None:
    xgrammar = pytest.importorskip("xgrammar", exc_type=ImportError)
    processors = pytest.importorskip("xgrammar.contrib.hf")
    pieces = [chr(97 + one % 26) * (1 + one // 26) for one in range(VOCABULARY)]
    tokens = xgrammar.TokenizerInfo(pieces, stop_token_ids=[EOS])
    grammar = xgrammar.GrammarCompiler(tokens).compile_regex("[a-f]+")
    made = []
    for attached in (False, True):
        processor = processors.LogitsProcessor(grammar)
        with attach(language_model, decoder_of(language_model)) if attached else nullcontext():
            made.append(
                language_model.generate(
                    **prompts(1), max_new_tokens=4, logits_processor=[processor]
                )
            )
    torch.testing.assert_close(*made)
