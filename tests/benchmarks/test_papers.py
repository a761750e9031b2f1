from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import raw
from benchmarks.papers import lsh_softmax, rf_softmax
from benchmarks.papers import runs as measuring
from benchmarks.papers.__main__ import PAPERS
from benchmarks.papers.classification import Prototypes, RowAdam, classifiers, packages, synsets
from benchmarks.papers.learning_to_screen import WalkingDecoder
from benchmarks.papers.runs import Options, classes_scored, language_models, make, steps
from benchmarks.race.datasets import Dataset
from benchmarks.tables import documents, papers
from benchmarks.tables.figures import UNMEASURED
from demo.excerpt import EXCERPT, read_paragraphs, write_paragraphs
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.training import SampledSoftmax
from tests.synthetic import make_hidden, make_softmax, write_heads
from tests.training.loss_kit import doubles

SMALL = Options(seconds=0.01, steps=None)
TARGET = torch.arange(20)


@pytest.mark.parametrize(
    ("method", "row", "step"),
    [
        ("full", 60, 60),
        ("uniform:n_sampled=1;in_batch=true", 20, 21),
        ("lsh:k=5;n_uniform=7", 32, 32),
        ("lsh:k=5;n_uniform=7;per_row=true", 13, 60),
        ("exp:n_sampled=1", 2, 60),
    ],
)
def test_classes_are_counted_with_the_targets(method: str, row: int, step: int) -> None:
    found = classes_scored(make(method, 8, 60), doubles(20, 8).float(), TARGET)
    assert row - 1 <= found[0] <= row + 1
    assert found[1] <= step


def test_full_targets_have_the_full_gradient() -> None:
    weight, bias = doubles(30, 8).float(), doubles(30, seed=2).float()
    criterion = make("uniform:n_sampled=400000", 8, 30)
    assert isinstance(criterion, SampledSoftmax)
    with torch.no_grad():
        criterion.classes.weight.copy_(weight)
        assert criterion.classes.bias is not None
        criterion.classes.bias.copy_(bias[:, None])
    assert lsh_softmax.error_of(criterion, doubles(50, 8, seed=3).float(), 9, 0) < 0.05


def test_every_loss_of_every_experiment_can_be_made() -> None:
    counts = torch.ones(600)
    for method in lsh_softmax.METHODS:
        make(method.replace("1000", "100").replace("917", "91"), 16, 600, counts)
    for method in (*rf_softmax.BASELINES, *rf_softmax.NUS):
        make(method, 16, 600, counts)


def test_steps_and_classifiers_are_timed() -> None:
    [row] = steps(["uniform"], 50, 8, 2)
    assert row["ms"] > 0
    [row] = classifiers(Prototypes(50), ["lsh:k=5"], 8, SMALL)
    assert 0 <= row["p1"] <= 1
    assert row["steps"] >= 1
    [row] = classifiers(Prototypes(50), ["lsh:k=5"], 8, Options(seconds=60, steps=3))
    assert row["steps"] == 3


def test_adam_of_rows_is_sparse_adam() -> None:
    trained = []
    for adam in (RowAdam, torch.optim.SparseAdam):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(50, 4, sparse=True)
        optimizer: torch.optim.Optimizer = adam(list(embedding.parameters()), lr=0.1)
        for _ in range(9):
            optimizer.zero_grad()
            embedding(torch.randint(50, (9,))).pow(2).sum().backward()
            optimizer.step()
        trained.append(embedding.weight.detach())
    torch.testing.assert_close(*trained)


def test_fourier_features_err_less_the_more_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.abs(np.random.default_rng(0).standard_normal((50, 64), np.float32))
    monkeypatch.setattr(rf_softmax, "digits", lambda: images)
    rows = list(rf_softmax.table_1(Options()))
    few, more, most = (row for row in rows[:5] if "Fourier" in row["method"])
    assert few["mse"] > 3 * more["mse"] > 3 * most["mse"]
    assert most["gaussian_mse"] == pytest.approx(most["mse"] / exp(2))
    assert most["mse"] < rows[4]["mse"]  # random Maclaurin


def test_a_language_model_has_more_seeds_at_its_best_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_paragraphs(tmp_path / "text.gz", read_paragraphs(EXCERPT)[:100])
    monkeypatch.setattr(measuring, "EXCERPT", tmp_path / "text.gz")
    [row] = language_models(["uniform:n_sampled=5"], [1e-3, 0.1], Options(words=300, seeds=2))
    assert row["rate"] == 0.1
    assert row["perplexity"] == pytest.approx(sum(row["perplexities"]) / 2)
    assert len(set(row["perplexities"])) == 2


def test_synsets_have_the_words_of_their_gloss_and_hypernyms() -> None:
    text = (
        "  1 This software and database is being provided to you\n"
        "00002684 03 n 02 object 0 physical_object 0 002 @ 00001930 n 0000 ~ 00003553 n 0000"
        ' | a tangible entity; "it was full of objects"  \n'
        "00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which is perceived  \n"
    )
    words = ["a", "tangible", "entity", "it", "was", "full", "of", "objects"]
    first, second = synsets(text)
    assert first == ("00002684", words, ["00001930 n"])
    assert second == ("00001740", ["that", "which", "is", "perceived"], [])


def test_packages_have_sources_words_and_first_alternatives() -> None:
    first = "Package: a-lib2\nSource: a (1.0)\nSection: libs\nDescription: Real-time library\n"
    lists = f"{first}Depends: libc6 (>= 2.34), x11:any | wayland, libc6\n\nPackage: b\n\n"
    words = ["a", "lib", "libs", "real", "time", "library"]
    assert packages(lists) == [("a", words, ["libc6", "x11"]), ("b", ["b"], [])]


def test_every_request_of_a_walking_decoder_goes_to_the_graph(tmp_path: Path) -> None:
    """The graph finds nearly all best words; log Z over what it meets is no more than over all."""
    softmax, hidden_states = make_softmax(600), make_hidden(400)
    given: Any = {"name": "", "index": "", "provenance": "", "weight": softmax.weight}
    data = Dataset(
        **given, bias=softmax.bias, fit=hidden_states, heldout=hidden_states, test=hidden_states
    )
    with open_index(write_heads(tmp_path / "lm" / "1", softmax)) as index:
        walking, plain = WalkingDecoder(index, data), LocalDecoder(index)
        true = plain.topk(hidden_states, 5, normalizer="full")
        found = walking.topk(hidden_states, 5, head="graph", normalizer="candidates")
    assert found.answer.head == "graph"
    assert (found.ids == true.ids).mean() > 0.9
    assert (found.answer.scanned < 600).all()
    assert found.answer.log_z is not None
    assert true.answer.log_z is not None
    assert (found.answer.log_z <= true.answer.log_z + 1e-4).all()


def test_a_raw_file_fills_its_table() -> None:
    rows = [{"method": "exp", "vocab_size": 10_000, "rows": B, "ms": 1.234} for B in (1, 8)]
    text = papers.table({"command": "measure", "rows": rows})
    assert text.startswith("| loss | B | CPU ms a step |\n|---|---|---|\n| `exp` | 1 | 1.23 |\n")
    assert text.endswith("\n| `exp` | 8 | 1.23 |\n\n`measure`: V = 10,000\n")
    assert papers.measured("002", "never") == UNMEASURED


def test_the_page_has_every_experiment() -> None:
    page = (documents.ROOT / "benchmarks/papers/README.md").read_text(encoding="utf-8")
    for paper, runs in PAPERS.items():
        for name in runs:
            command = f"{paper} --{name}"
            assert command in page, f"benchmarks/papers/README.md does not name {command}"
    for path in (raw.RESULTS / "papers").glob("*.json.gz"):
        assert f"papers, {path.name[:3]}" in page
