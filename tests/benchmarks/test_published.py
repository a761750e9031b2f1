import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from benchmarks.llamacpp.__main__ import speeds
from benchmarks.llamacpp.contenders import BODY, DRAWN, PEER, Chain, contenders
from benchmarks.llamacpp.judge import judge
from benchmarks.published.contexts import JUDGED, PLAIN, answers, asked, contexts_folder, read
from benchmarks.published.texts import paragraphs
from benchmarks.race.points import ONE
from benchmarks.tables import published
from demo.published import MODELS, Published
from logitsieve.api.requests import Sampling
from logitsieve.client.llamacpp_heads import UNEDITED
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.index_builder.capture.llamacpp import Stretch, read_primer
from logitsieve.llamacpp import LlamaContext
from logitsieve.llamacpp.xllamacpp import xllamacpp
from tests.llamacpp.small_model import Make

pytestmark = pytest.mark.usefixtures("llama_wheel")

PAGE = (
    '<html><div class="para">one <em>two</em></div><p>no</p><div><div class="para">three'
    "<div>no</div></div></div></html>"
)


def test_paragraphs_of_a_page() -> None:
    assert paragraphs(PAGE) == ["one two", "three"]


@pytest.fixture(scope="module")
def gguf(make_gguf: Make) -> Path:
    return make_gguf()


def test_contexts_are_spread_over_the_places_of_all_stretches(gguf: Path) -> None:
    with LlamaContext(gguf, positions=64) as context:
        stretches = [Stretch([5, 6, 7, 8], 1), Stretch([9, 10, 11], 2)]
        rows = read(context, stretches, 3, "test", lambda *_: None)
        context.headless = True
        context.forget()
        whole = context.read([5, 6, 7, 8], every=True)
        assert rows.shape == (3, context.gguf.dim)
        np.testing.assert_array_equal(rows[:2], whole[[1, 2]])
        assert asked(context, "why") == PLAIN.format(prompt="why")


def test_each_prompt_has_an_answer(gguf: Path) -> None:
    with LlamaContext(gguf, positions=256) as context:
        first, *others = answers(context, lambda *_: None)
        assert len(others) == 59
        assert first.first < len(first.tokens) <= first.first + 97


def test_what_an_index_is_fitted_on_begins_with_the_primer(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sha256(gguf.read_bytes()).hexdigest()
    monkeypatch.setitem(MODELS, "small", Published({}, ".gguf", digest))
    (folder := tmp_path / "small").mkdir()
    shutil.copy(gguf, folder / "small.gguf")
    parts = (*JUDGED, "fit", "heldout")
    for part in parts:
        np.save(folder / f"{part}.npy", np.zeros((1, 64), np.float32))
    listed = folder / "sequences.json"
    listed.write_text(json.dumps({part: [[[5, 6, 7], 1]] for part in parts}))
    assert contexts_folder("small", tmp_path) == folder
    with LlamaContext(gguf, positions=256) as context:
        expected = read_primer(context)
        prose = read(context, [Stretch([5, 6, 7], 1)], 2, "test", lambda *_: None)
    np.testing.assert_array_equal(np.load(folder / "primer.npy"), expected)
    np.testing.assert_array_equal(np.load(folder / "fit.npy"), np.concatenate([expected, prose]))
    assert not any(np.load(folder / f"{part}.npy").any() for part in (*JUDGED, "heldout"))

    np.save(folder / "fit.npy", prose)  # nothing is read again
    contexts_folder("small", tmp_path)
    np.testing.assert_array_equal(np.load(folder / "fit.npy"), prose)
    listed.write_text(json.dumps(json.loads(listed.read_text()) | {"primer": "of another text"}))
    contexts_folder("small", tmp_path)
    assert len(np.load(folder / "fit.npy")) == len(expected) + len(prose)


@pytest.mark.parametrize("draw", [None, *DRAWN])
def test_every_contender_decodes_the_text(gguf: Path, gguf_index: Path, draw: str | None) -> None:
    texts = [(list(range(300, 320)), 4)] * 3
    found = speeds(gguf, gguf_index, texts, 1, xllamacpp(), draw)
    assert list(found) == [PEER, BODY, "full", "sketch 0", "sketch 1e-15", "sketch 0.001"]
    assert found["sketch 0"]["proven"][0] == 1
    assert found[BODY]["scanned"][0] == 0
    assert all(one["tokens_per_s"][1] > 0 for one in found.values())


def test_greedy_contenders_agree_and_the_chain_draws(gguf: Path, gguf_index: Path) -> None:
    decoder = LocalDecoder(open_index(gguf_index))
    with LlamaContext(gguf) as context:
        racing = contenders(context, decoder, None)
        chosen = {}
        for name, head in racing.items():
            if head is not None:
                context.forget()
                context.headless = head.headless
                chosen[name] = int(head.choose(context.read([300, 301]), [UNEDITED], None).ids[0])
        assert len(set(chosen.values())) == 1
        context.headless = False
        context.forget()
        rows = context.read([300, 301])
        chain = Chain(context, Sampling.of(1, 1, DRAWN["top_p 0.95, min_p 0.05"]))
        draws = {int(chain.choose(rows, [UNEDITED], None).ids[0]) for _ in range(50)}
        assert draws <= set(np.argsort(-rows[0])[:100].tolist())


def test_best_tokens_are_judged(
    gguf: Path, gguf_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [Stretch(list(range(300, 310)), 2)] * 2
    monkeypatch.setattr("benchmarks.llamacpp.judge.stretches", lambda *_: texts)
    found = judge(gguf, gguf_index, 16, ["english"], 1)["english"]
    assert found["sketch 0"] == {"tokens": 16, "wrong": 0, "proven": 16}
    assert found[PEER]["tokens"] == 16


def test_the_shown_setting_is_the_fastest_that_is_precise_enough() -> None:
    points = [
        {"method": "a", "p1": p1, "us_per_row": {ONE: {"median": us}}}
        for p1, us in ((0.9, 1.0), (0.999, 3.0), (1.0, 4.0))
    ]
    assert published.chosen(points)["p1"] == 0.999
    assert published.chosen(points[:1])["p1"] == 0.9
