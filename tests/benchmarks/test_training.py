"""The parts that the experiments of training are made of."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.training.classifier import Plan, look, make_optimizers
from benchmarks.training.classifier import train as train_classifier
from benchmarks.training.data import hold_out
from benchmarks.training.entrants import Entrant, parse_all, present, scoring, variants, zipf_counts
from benchmarks.training.extreme import reaches
from benchmarks.training.gradients import errors_of, full_gradients, set_weights
from benchmarks.training.labels import NONE, SkipGram, Synthetic, unique_rows
from benchmarks.training.laws import rank_edges, ranks_of, softmax_histogram
from benchmarks.training.quality import full_by_size
from benchmarks.training.runs import Runs
from benchmarks.training.stages import STAGES, Stages
from benchmarks.training.steps import TorchCrossEntropy, make_weight
from logitsieve.api.errors import InvalidRequest
from logitsieve.training import LOSSES, FullSoftmax
from logitsieve.training.trainer import Corpus, Vocabulary


def quiet(stage: str, done: int, total: int) -> None:
    assert 0 <= done <= total, stage


def make_corpus(words: int = 4000, classes: int = 30) -> Corpus:
    ids = np.random.default_rng(0).integers(0, classes, words).astype(np.int32)
    vocabulary = Vocabulary(["<unk>", "<eos>", *(f"w{i}" for i in range(classes - 2))])
    return Corpus(ids, ids[:2], np.bincount(ids, minlength=classes), vocabulary)


def test_an_entrant_is_read_as_it_is_written() -> None:
    found = parse_all("full, lsh:k=30;n_uniform=4")
    assert found == [Entrant("full"), Entrant("lsh", ("k=30", "n_uniform=4"))]
    assert [each.label for each in found] == ["full", "lsh:k=30;n_uniform=4"]


def test_what_the_registry_lacks_stays_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert present([Entrant("full"), Entrant("absent"), Entrant("full")]) == [Entrant("full")]
    assert "'absent'" in capsys.readouterr().out


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_can_be_told_how_many_classes_to_score(loss: str) -> None:
    for entrant in variants(loss, 60):
        assert entrant.make(8, zipf_counts(200)).n_classes == 200


def test_shares_of_the_scored_classes_add_up() -> None:
    for loss in ("lsh", "kmeans", "lns"):
        values = [int(option.partition("=")[2]) for option in scoring(loss, 1100).options]
        assert sum(values) == 1100


def test_a_finished_run_is_not_made_again(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"found": len(made)}

    runs, settings = Runs(tmp_path), {"method": "full", "seed": 1}
    assert runs.get(settings, make)["found"] == 1
    assert Runs(tmp_path).get(settings, make)["found"] == 1
    assert runs.get({**settings, "seed": 2}, make)["found"] == 2
    assert Runs(tmp_path, fresh=True).get(settings, make)["found"] == 3


def test_a_run_that_is_refused_is_kept_as_failed(tmp_path: Path) -> None:
    def refuse() -> dict[str, int]:
        raise InvalidRequest("k", 9, "1 .. 8")

    assert "1 .. 8" in Runs(tmp_path).get({"method": "lsh"}, refuse)["failed"]


def test_words_to_judge_by_are_taken_out_of_the_text() -> None:
    corpus = make_corpus()
    held = hold_out(corpus, 400, blocks=10)
    assert len(held.valid) == 400
    assert len(held.train) + len(held.valid) == len(corpus.train)
    assert (held.counts + np.bincount(held.valid, minlength=30) == corpus.counts).all()


@pytest.mark.parametrize("task", [Synthetic(50, 40), SkipGram(hold_out(make_corpus(), 400))])
def test_batches_are_decided_by_their_number(task: Synthetic | SkipGram) -> None:
    first, again, other = task.train(3, 16), task.train(3, 16), task.train(4, 16)
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.labels, other.labels)
    assert not torch.equal(first.labels, task.judge(3, 16).labels)
    assert int(first.features.max()) < task.n_features
    assert int(first.labels.max()) < len(task.counts)
    assert bool((first.labels != NONE).any(1).all())


def test_synthetic_labels_occur_as_one_over_rank() -> None:
    labels = Synthetic(100, 40, most=1).train(0, 20_000).labels[:, 0].numpy()
    shares = np.bincount(labels, minlength=100)[:3] / len(labels)
    expected = np.log([2, 3 / 2, 4 / 3]) / math.log(100)
    assert shares == pytest.approx(expected, abs=0.01)


def test_a_label_is_in_a_row_once() -> None:
    found = unique_rows(np.array([[4, 4, NONE, 2]]))
    assert sorted(found[0].tolist()) == [NONE, NONE, 2, 4]


def test_stages_are_those_of_one_step_and_leave_no_gradient() -> None:
    head = Entrant("lsh", ("k=20", "n_uniform=5")).make(8, zipf_counts(50))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    head.follow(optimizer, every=1)
    stages = Stages(head)
    hidden = torch.randn(4, 8, requires_grad=True)
    before = head.classes.weight.detach().clone()
    found = stages.step(optimizer, hidden, torch.arange(4))
    assert tuple(found) == STAGES
    assert min(found.values()) > 0
    assert head.classes.weight.grad is None
    assert not torch.equal(before, head.classes.weight.detach())


def test_the_baseline_is_the_full_softmax() -> None:
    weight = make_weight(40, 8)
    head = FullSoftmax(8, 40)
    head.tie(nn.Embedding(40, 8, _weight=weight))
    hidden, target = torch.randn(6, 8), torch.arange(6)
    torch.testing.assert_close(TorchCrossEntropy(weight)(hidden, target), head(hidden, target))


def test_the_full_softmax_has_no_error_and_another_has() -> None:
    weight, hidden, target = make_weight(40, 8), torch.randn(6, 8), torch.arange(6)
    for loss, exact in (("full", True), ("chunked", True), ("uniform", False)):
        head = Entrant(loss).make(8, zipf_counts(40))
        set_weights(head, weight, torch.zeros(40))
        found = errors_of(head, (hidden, target), full_gradients(head, hidden, target), 3)
        assert (found["weight_error"] < 1e-5) is exact
        assert (found["hidden_cosine"] > 1 - 1e-6) is exact
        assert found["weight_error_of_mean"] <= found["weight_error"] + 1e-6


def test_ranks_leave_the_target_to_the_last() -> None:
    ranks = ranks_of(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0]))
    assert ranks.tolist() == [[2, 1, 0]]


def test_bins_hold_all_draws_of_the_softmax() -> None:
    edges = rank_edges(50)
    found = softmax_histogram(torch.randn(4, 50), torch.arange(4), edges, 10)
    assert (found * np.diff(edges)).sum() == pytest.approx(10, rel=1e-6)


def test_a_classifier_learns() -> None:
    task = Synthetic(20, 60, most=1)
    plan = Plan(rows=32, dim=16, lr=0.02, steps=120, seconds=1e9, looks=2, judged=128)
    found = train_classifier(Entrant("full"), task, plan, quiet)
    assert found["steps"] == 120
    assert found["course"][-1]["p1"] > found["course"][0]["p1"] + 0.2
    assert found["course"][-1]["loss"] < found["course"][0]["loss"]
    assert found["p1"] >= found["p3"]


def test_a_head_that_knows_all_labels_has_all_of_them() -> None:
    task, plan = Synthetic(6, 9, most=1, features=1), Plan(dim=6, judged=64)
    head = FullSoftmax(6, 6)
    with torch.no_grad():
        head.classes.weight.zero_()
        head.classes.bias[0] = 9.0  # type: ignore[index]
    model = nn.EmbeddingBag(9, 6, sparse=True)
    make_optimizers(model, head, plan)  # type: ignore[arg-type]
    found = look(model, head, task, plan, 0, 0.0)  # type: ignore[arg-type]
    share = float((task.judge(0, 64).labels == 0).any(1).float().mean())
    assert found["p1"] == pytest.approx(share)


def test_when_a_run_reaches_what_full_had() -> None:
    def run(method: str, course: list[tuple[float, float]]) -> dict[str, object]:
        looks = [{"seconds": seconds, "p1": p1} for seconds, p1 in course]
        return {"settings": {"method": method, "task": "t", "seed": 1}, "course": looks}

    full = run("full", [(10, 0.2), (40, 0.5)])
    sooner, worse = run("lns", [(5, 0.4), (10, 0.6)]), run("nce", [(10, 0.1)])
    assert reaches(sooner, [full, sooner]) == "10 s, 4.0x"
    assert reaches(worse, [full, worse]) == "never"


def test_over_full_is_over_the_mean_of_its_seeds() -> None:
    size = {"classes": 10, "words": 5}
    runs = [
        {"method": "full", "seed": seed, "perplexity": perplexity, "settings": size}
        for seed, perplexity in ((1, 100.0), (2, 140.0), (2, 140.0))
    ]
    assert full_by_size([*runs, {"method": "lsh"}]) == {(10, 5): 120.0}
