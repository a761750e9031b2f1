import json
import re
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.watermark import WatermarkKey
from logitsieve.client.llamacpp import LlamaContext, generate
from logitsieve.decoding.watermark import detect_watermark
from tests.cli.conftest import Run, whole_words
from tests.llamacpp.small_model import Make

pytestmark = pytest.mark.usefixtures("llama_wheel")


def test_a_drawn_text_is_detected_by_its_key_alone(
    run: Run, make_gguf: Make, tmp_path: Path
) -> None:
    """A text of whole words, as the small model's tokenizer would join single letters."""
    keys, text = [tmp_path / name for name in ("key", "other")], tmp_path / "text"
    for key in keys:
        key.write_text(f"{key.name} of many bytes\n")
    words = whole_words(make_gguf()).values()
    with LlamaContext(make_gguf()) as context:
        watermark = WatermarkKey.read(keys[0], "key")
        drawn: dict[str, Any] = {"temperature": 1.0, "seeds": 1, "watermark": watermark}
        made = generate(context, "go", max_tokens=80, allowed=list(words), **drawn)
        text.write_text("".join(token.text for token in made) + "\n")
    asked = ("detect", "-m", make_gguf(), "--text", text, "--key-file")
    found, others = (json.loads(run(*asked, key, "--json").stdout) for key in keys)
    assert found["p_value"] < 1e-6 < 1e-3 < others["p_value"]
    assert found["tokens"] == others["tokens"] > 60
    said = "score [0-9.]+ of [0-9]+ tokens; without the key p = .*\n"
    assert re.fullmatch(said, run(*asked, keys[0]).stdout)


def test_generate_marks_draws_and_leaves_greedy_text(
    run: Run, make_gguf: Make, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(bytes(16))
    command = ("generate", "-m", make_gguf(), "-p", "go", "-n", 40, "--head", "dense", "--json")
    marked = (*command, "--watermark-key", tmp_path / "key")
    [ids] = json.loads(run(*marked, "--seed", 1).stdout)["ids"]
    assert detect_watermark(WatermarkKey(bytes(16)), ids).p_value < 1e-6
    texts = (json.loads(run(*one).stdout)["texts"] for one in ((*marked, "--temp", 0), command))
    assert next(texts) == next(texts)
