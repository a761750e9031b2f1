import gzip
import json
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.client.llamacpp import generate
from logitsieve.index_builder.capture.llamacpp import capture_gguf, read_primer
from logitsieve.index_builder.config import CaptureConfig
from logitsieve.llamacpp import LlamaContext, chat_prompt
from tests.index.samples import snapshot
from tests.llamacpp.small_model import BEGIN, CHAT, POSITIONS, Make
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("llama_wheel")

LINE = "the time of man and good water all around </s>\n"
FLOATS = CaptureConfig(dtype="float32")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(LINE.encode() * 40))
    return path


def test_contexts_are_those_of_windows(make_gguf: Make, text: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    options: Any = {"config": FLOATS, "progress": lambda _, *counts: seen.append(counts)}
    summary = capture_gguf(make_gguf(), text, tmp_path / "out", window=16, **options)
    with LlamaContext(make_gguf(), positions=16) as context:
        context.headless = True
        ids, rows = context.tokenize(LINE * 40, begin=False, special=False), []
        for start in range(0, len(ids), 15):
            context.forget()
            rows.append(context.read([BEGIN, *ids[start : start + 15]], every=True))
    expected = np.concatenate(rows)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "00000.npy"), expected)
    assert summary == json.loads((tmp_path / "out" / "capture.json").read_text())
    assert summary["rows"] == summary["rows_seen"] == len(expected) == seen[-1][0]
    assert summary["output_layer"] == "output.weight"
    assert all(total == max(done, len(ids)) for done, total in seen)


@pytest.mark.parametrize(
    "make", [partial(ThreadPoolExecutor, 2), partial(ProcessPoolExecutor, 1, get_context("spawn"))]
)
def test_workers_give_the_same_contexts(
    make: Callable[[], Executor], make_gguf: Make, text: Path, tmp_path: Path
) -> None:
    options: Any = {"window": 16, "config": FLOATS}
    with make() as executor:
        capture_gguf(make_gguf(), text, tmp_path / "many", executor=executor, **options)
    capture_gguf(make_gguf(), text, tmp_path / "one", **options)
    assert snapshot(tmp_path / "many") == snapshot(tmp_path / "one")


def test_contexts_of_chats_are_of_the_models_own_answers(
    make_gguf: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, text = make_gguf(chat_template=CHAT), tmp_path / "asked.txt"
    text.write_text("go\n\nthe time of man\n" + LINE + "all " * 60 + "\n")
    summary = capture_gguf(model, text, tmp_path / "out", window=48, chat=True, config=FLOATS)
    expected = []
    with LlamaContext(model) as context:
        for line in filter(None, text.read_text().split("\n")[:-2]):
            prompt = context.tokenize(chat_prompt(context, line))
            made = generate(context, prompt, max_tokens=48 - len(prompt) or 1)
            list(made)
            answer = [token for token in made.ids[0] if not context.ends(token)]
            context.headless = True
            context.forget()
            expected.append(context.read(prompt + answer, every=True)[len(prompt) - 1 :])
            context.headless = False
    found = np.load(tmp_path / "out" / "00000.npy")
    np.testing.assert_array_equal(found, np.concatenate(expected))
    assert summary["chat"] is True
    assert caplog.text.count("is left out: with its answer it has to fit into window, 48") == 1


def test_without_a_text_contexts_are_of_the_primer(make_gguf: Make, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    options: Any = {"config": FLOATS, "progress": lambda *report: seen.append(report)}
    summary = capture_gguf(make_gguf(), None, tmp_path / "out", **options)
    with LlamaContext(make_gguf(), positions=256) as context:
        expected = read_primer(context)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "00000.npy"), expected)
    assert summary["primer"] is True
    assert seen[-2:] == [("read the primer", 43, 43), ("capture", len(expected), 0)]
    with refused("text", "got nothing, allowed: a text of messages"):
        capture_gguf(make_gguf(), None, tmp_path / "chat", chat=True)


def test_a_text_without_messages_is_refused(make_gguf: Make, text: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n\n")
    model = make_gguf(chat_template=CHAT)
    with refused("text", "of no message that fits"):
        capture_gguf(model, empty, tmp_path / "out", chat=True)
    with refused("chat", "without a chat template"):
        capture_gguf(make_gguf(), text, tmp_path / "out", chat=True)
    assert not (tmp_path / "out").exists()


def test_windows_and_scales_are_those_of_the_model(
    make_gguf: Make, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    summary = capture_gguf(make_gguf(), text, tmp_path / "out", window=2 * POSITIONS)
    assert summary["window"] == POSITIONS
    assert f"window: got {2 * POSITIONS}, but the model was trained on {POSITIONS}" in caplog.text
    options = {"architecture": "granite", "attention__scale": 0.2}
    for scale in (1.0, 4.0):
        path = make_gguf(logit_scale=scale, **options)
        capture_gguf(path, text, tmp_path / str(scale), window=32, config=FLOATS)
    plain, scaled = (np.load(tmp_path / scale / "00000.npy") for scale in ("1.0", "4.0"))
    np.testing.assert_array_equal(scaled, plain / 4)


def test_bad_input_is_named_before_writing(make_gguf: Make, text: Path, tmp_path: Path) -> None:
    (empty := tmp_path / "empty.txt").write_text("")
    (tmp_path / "there").mkdir()
    wrong = {
        "out": (make_gguf(), text, tmp_path / "there", 16),
        "text": (make_gguf(), tmp_path / "none.txt", tmp_path / "out", 16),
        "window": (make_gguf(), text, tmp_path / "out", 1),
        "model": (text, text, tmp_path / "out", 16),
    }
    for field, (gguf, read, out, window) in wrong.items():
        with refused(field):
            capture_gguf(gguf, read, out, window=window)
    with refused("text", "of no tokens"):
        capture_gguf(make_gguf(), empty, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".tmp*"))
