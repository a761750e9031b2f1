import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from logitsieve.cli import background
from logitsieve.cli.generate import GenerateOptions, Handover
from logitsieve.client.llamacpp_generation import GenerationCost
from logitsieve.index import open_index
from tests.cli.conftest import Run, write_demo
from tests.llamacpp.small_model import CHAT, Make

pytestmark = pytest.mark.usefixtures("llama_wheel", "build")

PROMPT = "the time of man"
PROVEN = "the head alone [0-9,]+; [0-9,]+ of 560 rows a token, 6 tokens proven"
COST = {"sketch": PROVEN, "full": PROVEN, "dense": "all 560 logits of each"}


def test_heads_continue_a_text_alike(run: Run, make_gguf: Make, gguf_index: Path) -> None:
    shown = {}
    options = ("--model", make_gguf(), "--prompt", PROMPT, "--max-tokens", 6)
    for head in COST:
        result = run("generate", *options, "--head", head, "--index", gguf_index)
        shown[head] = result.stdout
        assert re.search(f"^6 tokens: [0-9,.]+ a second, {COST[head]}$", result.stderr, re.M)
    assert shown["sketch"] == shown["full"] == shown["dense"]
    assert shown["dense"].startswith(PROMPT)
    for more in ((), ("--lookup",)):
        assert run("generate", *options, "--head", "dense", *more).stdout == shown["dense"]


def test_without_an_index_one_is_made(
    run: Run, make_gguf: Make, gguf_index: Path, build: Any, tmp_path: Path
) -> None:
    engine = ("--engine", "llamacpp")
    command = ("generate", "-m", make_gguf(), "--prompt", PROMPT, "--max-tokens", 6, *engine)
    dense, dropped = run(*command, "--head", "dense"), run(*command)
    first, last, cost = dropped.stderr.splitlines()
    assert first == background.MAKING
    assert re.fullmatch("After . s the index is not finished and is dropped: --wait .*", last)
    assert cost.endswith(COST["dense"])
    assert list((tmp_path / "cache" / "indexes").iterdir()) == []
    build(f"import shutil, sys; shutil.copytree({str(gguf_index)!r}, sys.argv[-1])")
    waited = run(*command, "--wait", "--json")
    made = " s the index is made: the next text begins with it."
    assert waited.stderr.splitlines()[1].endswith(made)
    kept, name = run(*command), open_index(gguf_index).manifest.softmax_sha256[:16]
    out = tmp_path / "cache" / "indexes" / name / "1"
    assert kept.stderr.startswith(f"No --index is given: that in {out} answers.\n")
    assert list(out.parents[1].rglob("1")) == [out]
    assert re.search(COST["sketch"], kept.stderr)
    assert dense.stdout == dropped.stdout == kept.stdout
    assert "--index" not in dense.stderr
    assert json.loads(run(*command, "--json").stdout)["head"] == "sketch"


def test_a_model_that_bends_its_logits(run: Run, make_gguf: Make) -> None:
    capped = make_gguf(architecture="gemma2", tied=True)
    command = ("generate", "-m", capped, "-p", PROMPT, "-n", 3, "--engine", "llamacpp")
    assert run(*command).stderr.startswith(background.MAKING)
    drawn = run(*command, "--temp", 1)
    assert drawn.stderr.startswith("No index is made, as the model caps its logits")
    assert run(*command, "--top-k", 5).stderr.startswith(background.MAKING)
    scored = run(*command, "--logprobs", "--json")
    assert scored.stderr.startswith("No index is made, as the model caps its logits")
    assert json.loads(scored.stdout)["head"] == "dense"


def test_the_head_of_an_index_is_sketch_if_none_is_named(
    run: Run, make_gguf: Make, gguf_index: Path
) -> None:
    """Whatever its times were."""
    command = ("generate", "--model", make_gguf(), "--prompt", PROMPT, "--max-tokens", 3)
    index = ("--index", gguf_index)
    assert json.loads(run(*command, *index, "--json").stdout)["head"] == "sketch"
    said = "error: head: got screen, allowed: full, sketch, dense"
    assert said in run(*command, *index, "--head", "screen", code=2).stderr


@pytest.mark.parametrize(
    ("head", "max_error", "texts", "scanned", "said"),
    [
        ("sketch", 0, 3, 560, "560 of 560 rows a token, 10 tokens proven"),
        ("sketch", 0, 4, 30, "30 of 560 rows a token, 10 tokens proven"),
        (
            *("sketch", 0, 4, 560),
            "10 tokens proven\nMore than 3 texts at once are continued by all rows.",
        ),
        ("sketch", 1e-15, 1, 30, "each token right but for a chance of 1e-15"),
        ("screen", 1, 1, 30, "0 tokens proven"),
    ],
)
def test_the_last_line_says_what_a_head_did(
    head: str, max_error: float, texts: int, scanned: int, said: str
) -> None:
    proven = 0 if max_error else 10
    counts = GenerationCost(tokens=10, proven=proven, seconds=1, head_s=1, scanned=10 * scanned)
    attached, decoder = Mock(), Mock()
    attached.context.gguf.vocab_size = 560
    decoder.engine_for.return_value.max_error = max_error
    decoder.engine_for.return_value.answering.most_rows = 3
    handover = Handover(attached, decoder, None, {"head": head}, threads=1)
    assert handover.cost(counts, texts).endswith(said)


def test_several_prompts_and_draws(run: Run, make_gguf: Make, gguf_index: Path) -> None:
    options = ("--prompt", PROMPT, "--prompt", "go", "--max-tokens", 4, "--index", gguf_index)
    sample = ("--temp", 0.8, "--top-k", 20, "--seed", 3)
    command = ("generate", "--model", make_gguf(), *options, *sample)
    made = json.loads(run(*command, "--json").stdout)
    assert json.loads(run(*command, "--json").stdout)["ids"] == made["ids"]
    assert len(made["texts"]) == 2
    assert made["tokens"] == sum(map(len, made["ids"]))
    lines = run(*command).stdout
    assert lines == "".join(
        prompt + text + "\n" for prompt, text in zip((PROMPT, "go"), made["texts"], strict=True)
    )


def test_chats_files_and_stops(run: Run, make_gguf: Make, gguf_index: Path, tmp_path: Path) -> None:
    chat, file = make_gguf(chat_template=CHAT), tmp_path / "asked.txt"
    file.write_text(f"{PROMPT}\n")
    command = ("generate", "-m", chat, "-n", 6, "-t", 1, "--head", "dense")
    answered = run(*command, "--chat", "--system", "go", "-f", file)
    asked = f"system: go</s>\nuser: {PROMPT}</s>\nanswer:"
    plain = run(*command, "-p", asked).stdout
    assert plain == asked + answered.stdout
    assert run(*command, "-f", file).stdout == run(*command, "-p", PROMPT).stdout
    file.write_text(f"\ufeff{PROMPT}\n")  # as some editors begin a file
    assert run(*command, "-f", file).stdout == run(*command, "-p", PROMPT).stdout
    assert run(*command, "-f", "-", text=f"{PROMPT}\n").stdout.startswith(PROMPT)
    several = run(*command, "--chat", "-p", PROMPT, "-p", "go").stdout
    assert several.startswith(f"{PROMPT}\n")
    piece = answered.stdout[2:5]
    stopped = run(*command, "--chat", "--system", "go", "-f", file, "--stop", piece)
    assert stopped.stdout == answered.stdout.split(piece)[0] + "\n"


def test_guidance_by_a_negative_prompt(run: Run, make_gguf: Make, gguf_index: Path) -> None:
    guided = ("--guidance-scale", 3, "--negative-prompt", "go")
    command = ("generate", "-p", PROMPT, "-n", 6, "-t", 1)
    for model, more in ((make_gguf(), ()), (make_gguf(chat_template=CHAT), ("--chat",))):
        texts = [
            run(*command, "-m", model, *more, *head, *guided).stdout
            for head in (("--head", "dense"), ("--index", gguf_index))
        ]
        assert texts[0] == texts[1] != run(*command, "-m", model, *more, "--head", "dense").stdout
    said = "negative_prompt: got one, allowed: none where guidance_scale is 1"
    run(*command, "-m", make_gguf(), "--head", "dense", *guided[2:], code=2, says=said)


def test_log_probabilities_of_both_heads(run: Run, make_gguf: Make, gguf_index: Path) -> None:
    options = ("-n", 5, "--logprobs", "--json", "-t", 1)
    command = ("generate", "-m", make_gguf(), "-p", PROMPT, *options)
    made = [
        json.loads(run(*command, *more).stdout)
        for more in (("--head", "dense"), ("--index", gguf_index))
    ]
    assert made[0]["ids"] == made[1]["ids"]
    assert made[0]["logprobs"][0] == pytest.approx(made[1]["logprobs"][0], abs=1e-4)
    assert len(made[0]["logprobs"][0]) == 5
    assert max(made[0]["logprobs"][0]) < 0


def test_no_index_that_fits(run: Run, make_gguf: Make, tmp_path: Path, build: Any) -> None:
    other = write_demo(tmp_path)
    said = f"index: got {other}: V = 300, D = 24, allowed: the model's, V = "
    command = ("generate", "--model", make_gguf(), "--prompt", PROMPT)
    run(*command, "--index", other, code=2, says=said)
    build("import sys; sys.exit('error: out of luck')")
    result = run(*command, "-n", 3, "--wait", "--json", says="error: out of luck")
    assert json.loads(result.stdout)["head"] == "dense"


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ({}, {}),
        ({"seed": 0}, {"seeds": 0, "temperature": 1.0}),
        ({"temperature": 0.0, "top_k": 3}, {"temperature": 0.0, "top_k": 3}),
        ({"penalized": 9, "repetition_penalty": 1.2}, {"penalized": 9, "repetition_penalty": 1.2}),
    ],
)
def test_an_option_of_draws_draws(given: dict[str, Any], drawn: dict[str, Any]) -> None:
    options = GenerateOptions(model=Path("m"), prompt=("a",), **given)
    always = {"max_tokens": 128, "stop": (), "logprobs": False}
    assert options.settings() == drawn | always


def test_texts_of_a_schema_or_a_pattern(
    run: Run, make_gguf: Make, gguf_index: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"enum": [7]}, "minItems": 1, "maxItems": 2}')
    given = ("generate", "-m", make_gguf(), "--index", gguf_index, "-p", "the", "-n", 40, "--json")
    [text] = json.loads(run(*given, "--json-schema", schema).stdout)["texts"]
    assert json.loads(text) in ([7], [7, 7])
    [text] = json.loads(run(*given, "--regex", "m{3}", "--head", "dense").stdout)["texts"]
    assert text == "mmm"
    run(*given, "--regex", "m{3", code=2, says="regex: got ")
    run(*given, "--json-schema", tmp_path / "none", code=2, says="json_schema: got ")
    run(*given, "--json-schema", schema, "--regex", "a", code=2, says="one of --json-schema")
