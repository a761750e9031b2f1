from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp import GgufModel, LlamaContext
from tests.llamacpp.small_model import POSITIONS, Make

pytestmark = pytest.mark.usefixtures("llama_wheel")

TEXT = "the time of man, and after that we go back to work."

# The most that llama.cpp's product, which rounds h to the type beside W's, differs by, of |logit|.
BLOCKS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
ROUNDING = {"F32": 1e-6, "F16": 2e-3, "BF16": 2e-2, **dict.fromkeys(BLOCKS, 3e-2)}


def logits_of(context: LlamaContext, hidden_states: np.ndarray) -> np.ndarray:
    """float64 W h + b, capped as the model caps its own; h is scaled already."""
    gguf = context.gguf
    logits = hidden_states.astype(np.float64) @ gguf.matrix.rows(slice(None)).astype(np.float64).T
    if gguf.bias is not None:
        logits += gguf.bias
    return logits if gguf.softcap is None else gguf.softcap * np.tanh(logits / gguf.softcap)


@pytest.mark.parametrize("kind", ROUNDING)
def test_hidden_is_what_the_models_own_logits_are_made_of(
    make_gguf: Make, kind: str, engine: str
) -> None:
    with LlamaContext(make_gguf(head=kind), sequences=2, engine=engine) as context:
        tokens = context.tokenize(TEXT)
        logits = context.read(tokens, 0, every=True)
        context.headless = True
        hidden_states = context.read(tokens, 1, every=True)
        expected = logits_of(context, hidden_states)
        assert hidden_states.shape == (len(tokens), context.gguf.dim)
        assert np.abs(logits - expected).max() <= ROUNDING[kind] * np.abs(expected).max()


OTHERS: dict[str, dict[str, Any]] = {
    "tied": {"tied": True},
    "scaled": {"architecture": "granite", "logit_scale": 4.0, "attention__scale": 0.2},
    "softcapped": {"architecture": "gemma2", "tied": True, "final_logit_softcapping": 5.0},
    "by default": {"architecture": "gemma2", "tied": True},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_scales_and_softcaps_are_those_of_the_file(make_gguf: Make, kind: str) -> None:
    with LlamaContext(make_gguf(**OTHERS[kind]), sequences=2) as context:
        tokens = context.tokenize(TEXT)
        logits = context.read(tokens, 0)
        context.headless = True
        expected = logits_of(context, context.read(tokens, 1))
        assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()


def test_sequences_in_one_step_are_as_one_by_one(make_gguf: Make, engine: str) -> None:
    with LlamaContext(make_gguf(), sequences=3, engine=engine) as context:
        context.headless = True
        prompts = [context.tokenize(text) for text in ("the time", "of man and", "go back")]
        for number, prompt in enumerate(prompts):
            context.read(prompt, number)
        together = context.step({2: 300, 0: 301, 1: 302})
        for row, (number, token) in zip(together, {2: 300, 0: 301, 1: 302}.items(), strict=True):
            context.forget()
            alone = context.read([*prompts[number], token], number)
            np.testing.assert_allclose(row, alone[0], atol=1e-4)


@pytest.mark.parametrize("headless", [True, False])
@pytest.mark.parametrize("separate", [True, False])
def test_rows_of_a_step_are_in_the_order_asked(
    make_gguf: Make, separate: bool, headless: bool, engine: str
) -> None:
    """llama.cpp computes sequences in another order, and those with a gap between them apart."""
    made = make_gguf(body="Q4_1", head="Q4_1")
    with LlamaContext(
        made, sequences=5, positions=5 * 256, separate=separate, engine=engine
    ) as context:
        context.headless = headless
        rng = np.random.default_rng(4)

        def rows(numbers: list[int]) -> np.ndarray:
            for number in numbers:  # in a cache that others left
                context.forget(number)
                context.read([5 + number, *[300 + number] * number], number)
            return context.step({number: 310 + number for number in numbers})

        alone = np.concatenate([rows([number]) for number in range(5)])
        orders = [list(order) for order in permutations(range(4))]
        orders += [rng.permutation(5)[: 1 + case % 5].tolist() for case in range(40)]
        for order in orders:
            if separate:
                np.testing.assert_array_equal(rows(order), alone[order], str(order))
            else:
                np.testing.assert_allclose(rows(order), alone[order], atol=1e-4)
        assert [context.length(number) for number in range(5)] == [2, 3, 4, 5, 6]


def test_a_long_prompt_is_read_in_parts_with_and_without_a_head(
    make_gguf: Make, engine: str
) -> None:
    with LlamaContext(make_gguf(), sequences=2, positions=3 * POSITIONS, engine=engine) as context:
        tokens = (context.tokenize(TEXT) * 60)[: POSITIONS + 90]
        logits = context.read(tokens, 0)
        context.headless = True
        hidden_states = context.read(tokens, 1)
        assert hidden_states.shape == (1, context.gguf.dim)
        np.testing.assert_allclose(logits_of(context, hidden_states), logits, atol=1e-4)
        assert context.length(1) == len(tokens)
        every = context.read(tokens[:10], 0, every=True)
        assert every.shape == (10, context.gguf.dim)


def test_threads_and_the_head_change_no_logits(make_gguf: Make) -> None:
    with LlamaContext(make_gguf()) as context:
        before = context.read([5, 6, 7], every=True)
        context.forget()
        context.headless = True
        context.read([5, 6, 7])
        context.headless = False
        context.forget()
        np.testing.assert_array_equal(context.read([5, 6, 7], every=True), before)
    with LlamaContext(make_gguf(), threads=2) as context:
        before = context.read([5, 6, 7])
        context.forget()
        context.use_threads(1)
        np.testing.assert_array_equal(context.read([5, 6, 7]), before)
        with pytest.raises(InvalidRequest, match="threads: got 0"):
            context.use_threads(0)
    # Separate caches stay at one thread or at several.
    for threads in (1, 2):
        with LlamaContext(make_gguf(), sequences=2, separate=True, threads=threads) as context:
            context.use_threads(threads)
            with pytest.raises(InvalidRequest, match=f"threads: got {3 - threads}, allowed: "):
                context.use_threads(3 - threads)


def test_what_cannot_be_decoded_is_refused_and_nothing_changes(make_gguf: Make) -> None:
    with LlamaContext(make_gguf(), sequences=2, positions=256) as context:
        before = context.read([5, 6], 0)
        wrong: dict[str, Callable[[], object]] = {
            "tokens: got none": lambda: context.read([]),
            "tokens: got -1": lambda: context.read([-1]),
            "tokens: got 5 .. 560": lambda: context.read([5, context.gguf.vocab_size]),
            "sequence: got 2": lambda: context.read([5], 2),
            "tokens: got 300": lambda: context.read([5] * 300),
        }
        for reason, call in wrong.items():
            with pytest.raises(InvalidRequest, match=reason):
                call()
        context.forget(0)
        np.testing.assert_array_equal(context.read([5, 6], 0), before)
    with pytest.raises(InvalidRequest, match="closed"):
        context.read([5])


def test_prompts_of_ids_alone_and_as_many_as_fit(make_gguf: Make) -> None:
    with LlamaContext(make_gguf(vocabulary=False)) as context:
        assert context.read([5, 6]).shape == (1, context.gguf.vocab_size)
    with LlamaContext(make_gguf(), positions=3) as context:
        assert context.positions == 256
        assert len(context.read([5] * 256)) == 1
    with LlamaContext(make_gguf(), sequences=2, positions=256) as context:
        context.read([5] * 256)
        with pytest.raises(InvalidRequest, match="at most 0, the space in the cache"):
            context.step({0: 5})
        context.forget()
        with pytest.raises(InvalidRequest, match="got 0 tokens, allowed: 1 to 256"):
            context.step({})
        assert context.free == 256


TOKENS = [300 + 7 * place % 90 for place in range(700)]


def test_drafts_have_the_bits_of_single_steps_and_leave_no_trace(
    make_gguf: Make, engine: str
) -> None:
    with LlamaContext(make_gguf(body="Q4_1", head="Q4_1"), positions=768, engine=engine) as context:
        for start in (1, 250, 505, 600):
            context.forget()
            context.read(TOKENS[:start])
            single = [context.step({0: token}) for token in TOKENS[start : start + 20]]
            context.forget()
            context.read(TOKENS[:start])
            rows, place = list[np.ndarray](), start
            while place < start + 20:
                count, wrong = 1 + place % 5, place % 3
                drafts = [*TOKENS[place : place + count], *[7] * wrong]
                read = context.look_ahead(drafts)
                kept = min(len(read), count)
                for _ in range(kept - 1):
                    context.accept()
                rows += list(read[:kept, None])
                place += kept
                assert context.length(0) == place
            for one, other in zip(single, rows, strict=False):
                np.testing.assert_array_equal(one, other)
        free = context.free
        context.look_ahead([5, 6, 7])
        assert context.free == free - 1


def test_drafts_that_would_change_bits_are_not_read(make_gguf: Make, engine: str) -> None:
    """float32 matrices are multiplied by another kernel for two rows, and then by a third."""
    with LlamaContext(make_gguf(), engine=engine) as context:
        context.read(TOKENS[:20])
        single = context.step({0: 5})
        context.forget()
        context.read(TOKENS[:20])
        for drafts in ([5, 6, 7], [8, 9], [10, 11, 12]):
            rows = context.look_ahead(drafts)
            if drafts[0] == 5:
                np.testing.assert_array_equal(rows[:1], single)
        assert context.length(0) == 23


def test_drafts_end_with_the_cache_and_with_its_parts(make_gguf: Make) -> None:
    with LlamaContext(make_gguf(body="Q4_1", head="Q4_1"), positions=512) as context:
        for start in (252, 508):
            context.forget()
            context.read(TOKENS[:start])
            assert len(context.look_ahead(TOKENS[:9])) <= 4
        for _ in range(3):
            context.look_ahead([5])
        with pytest.raises(InvalidRequest, match="at most 0, the space in the cache"):
            context.look_ahead([5, 6])
        context.forget()
        with pytest.raises(InvalidRequest, match=r"tokens: got 5 \.\. 560"):
            context.look_ahead([5, 560])


def test_wrong_options_and_logits_that_are_not_the_files_are_refused(make_gguf: Make) -> None:
    gguf = GgufModel(make_gguf())
    gguf.scale = 0.5
    with pytest.raises(InvalidRequest, match=r"away from W h \+ b"):
        LlamaContext(gguf)
    for wrong in ("sequences", "positions", "threads"):
        options: dict[str, Any] = {wrong: 0}
        with pytest.raises(InvalidRequest, match=f"{wrong}: got 0"):
            LlamaContext(make_gguf(), **options)
