"""Texts that ended the process inside llama.cpp, and buffers that were too small."""

import subprocess
import sys
import threading

import pytest

from logitsieve.llamacpp import LlamaContext
from logitsieve.llamacpp.model import LlamaModel
from logitsieve.llamacpp.tokenizer import DIRECT, MOST_TEXT, STACK_OF_CHARACTER, with_stack
from tests.llamacpp.small_model import Make
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("llama_wheel")

RECURSIVE = (
    *("deepseek-llm", "deepseek-v3", "falcon", "gpt-4o", "tekken"),
    *("poro-chat", "exaone-moe", "default"),
)
UNITS = ("A", " ", ".", "漢")
CHARACTERS = 30_000  # 8 MiB of stack hold 24,000
READ = """
import sys
from logitsieve.llamacpp.model import LlamaModel
for path in sys.argv[3:]:
    with LlamaModel(path) as model:
        for unit in sys.argv[1].split("|"):
            model.tokenize(unit * (int(sys.argv[2]) // len(unit)))
"""


def test_a_long_run_of_equal_characters_needs_more_stack_than_threads_have(make_gguf: Make) -> None:
    models = [str(make_gguf(pre=name)) for name in RECURSIVE]
    command = [sys.executable, "-c", READ, "|".join(UNITS), str(CHARACTERS), *models]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-500:]


def test_stacks_are_as_large_as_the_text_and_sizes_are_put_back() -> None:
    before = threading.stack_size()
    here = threading.current_thread()
    assert with_stack(DIRECT, threading.current_thread) is here
    assert with_stack(DIRECT + 1, threading.current_thread) is not here
    assert threading.stack_size() == before

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_stack(DIRECT + 1, fail)
    with refused("text", "no stack is left"):
        with_stack((1 << 60) // STACK_OF_CHARACTER, fail)
    assert threading.stack_size() == before


def test_texts_have_a_limit_of_bytes(make_gguf: Make) -> None:
    with LlamaContext(make_gguf(), sequences=2, positions=512, separate=True) as context:
        longest = max(len(word.encode()) for word in context.gguf.vocabulary or [])
        assert context.longest_text == 256 * longest
        with refused("text", f"a text of 9 bytes, allowed: at most {8} bytes"):
            context.tokenize("the é me", most=8)
        assert context.tokenize("the é me", most=9)
        with refused("text", f"at most {MOST_TEXT} bytes"):
            context.tokenize("x" * (MOST_TEXT + 1))


@pytest.mark.parametrize("character", ["\n", "漢", "é"])
def test_characters_that_the_vocabulary_lacks_are_named(make_gguf: Make, character: str) -> None:
    with LlamaModel(make_gguf(octets=False)) as model:
        assert model.tokenize("the of")
        with refused("text", "which lacks tokens of bytes") as _:
            model.tokenize(f"the{character}of")
    with LlamaModel(make_gguf(octets=False, extra=("é",))) as model:
        assert model.tokenize("the é")


def test_patterns_that_abort_or_take_hours_do_not_get_such_texts(make_gguf: Make) -> None:
    with LlamaModel(make_gguf(pre="whitespace")) as model:
        for text in ("a  b", "a \nb", "\n "):
            with refused("text", "single spaces"):
                model.tokenize(text)
        assert model.tokenize("a b")
    with LlamaModel(make_gguf(pre="superbpe")) as model:
        with refused("text", "at most 1000 digits"):
            model.tokenize("1" * 1001)
        assert model.tokenize("1" * 1000)


def test_a_text_of_more_tokens_than_bytes_is_read_whole(make_gguf: Make) -> None:
    words = ("\u2581",)  # spelled by three bytes where it is no token
    with LlamaModel(make_gguf(without=words)) as model:
        ids = model.tokenize(" " * 100, begin=False)
        assert b"".join(map(model.piece, ids)).decode() == "\u2581" * 101


def test_pieces_are_whole(make_gguf: Make) -> None:
    extra = ("y" * 256, "x" * 257, "é" * 200, "w" * 1000)
    with LlamaModel(make_gguf(extra=extra)) as model:
        first = model.gguf.vocab_size - len(extra)
        for number, text in enumerate(extra):
            assert model.piece(first + number) == text.encode()
            assert model.piece(first + number, special=True) == text.encode()
        assert model.longest_token == 1000
