"""EleutherAI's lm_eval from PyPI, unmodified, on tasks of this file, item by item.

`make test-eval` installs it and runs this.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from logitsieve.client.llamacpp import LlamaAttachment
from tests.completions.conftest import NAME, Client
from tests.completions.test_scores import MOST_ERROR, log_softmax
from tests.llamacpp.small_model import BEGIN, WORDS

pytestmark = [pytest.mark.evaluation, pytest.mark.usefixtures("llama_wheel")]

ITEMS = 24


def metric(name: str, aggregation: str, higher_is_better: bool) -> dict[str, Any]:
    return {"metric": name, "aggregation": aggregation, "higher_is_better": higher_is_better}


TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_target": "gold",
        "doc_to_choice": "{{choices}}",
        "metric_list": [metric("acc", "mean", True), metric("acc_norm", "mean", True)],
    },
    "cloze": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{question}}",
        "doc_to_target": " {{answer}}",
        "metric_list": [metric("perplexity", "perplexity", False), metric("acc", "mean", True)],
    },
    "prose": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{page}}",
        "metric_list": [metric("word_perplexity", "weighted_perplexity", False)],
    },
}


def items() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS, count))

    return [
        {
            "question": words(int(rng.integers(3, 40))),
            "choices": [words(int(rng.integers(1, 6))) for _ in range(4)],
            "gold": int(rng.integers(4)),
            "answer": str(rng.choice(WORDS)),
            "page": words(int(rng.integers(20, 120))),
        }
        for _ in range(ITEMS)
    ]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "items.jsonl"
    data.write_text("".join(json.dumps(item) + "\n" for item in items()))
    for name, task in TASKS.items():
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        whole = {"task": name, "test_split": "test", **source, **task}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(whole))
    return folder


def evaluate(client: Client, tasks: Path, out: Path, batch: int) -> dict[str, list[Any]]:
    """The answers of every task by item: [log-likelihood, is greedy] of each choice."""
    model = f"model={NAME},base_url={client.address}/v1/completions,max_length=255"
    command = [
        *(sys.executable, "-m", "lm_eval", "--model", "local-completions"),
        *("--model_args", f"{model},num_concurrent=1,max_retries=1"),
        *("--tasks", ",".join(TASKS), "--include_path", str(tasks), "--batch_size", str(batch)),
        *("--output_path", str(out), "--log_samples"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = {}
    for name in TASKS:
        [file] = out.rglob(f"samples_{name}_*.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        answers[name] = [row["filtered_resps"] for row in sorted(rows, key=lambda r: r["doc_id"])]
    return answers


@pytest.fixture(scope="module")
def answers(client: Client, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("lm_eval", reason="lm_eval is not installed: make test-eval")
    return {
        batch: evaluate(client, tasks, tmp_path_factory.mktemp("out"), batch)
        for batch in (1, 4, 16)
    }


def test_the_batch_changes_no_bit(answers: dict[int, Any]) -> None:
    assert answers[1] == answers[4] == answers[16]


def test_answers_are_those_of_float64(answers: dict[int, Any], attached: LlamaAttachment) -> None:
    context = attached.context

    def scored(text: str, target: str) -> tuple[float, bool]:
        """lm_eval's split of a text and its target into tokens, which has the target's own end."""
        spaces = len(text) - len(text.rstrip())
        if spaces:
            text, target = text[:-spaces], text[-spaces:] + target
        whole = context.tokenize(text + target, begin=False)
        start = len(context.tokenize(text, begin=False))
        rows = log_softmax(context, whole)[start - 1 : -1]
        chosen = rows[range(len(rows)), whole[start:]]
        return float(chosen.sum()), bool((rows.argmax(axis=1) == whole[start:]).all())

    for place, item in enumerate(items()):
        found = answers[1]["choices"][place]
        expected = [scored(item["question"], f" {choice}") for choice in item["choices"]]
        require_equal(found, expected)
        assert (
            np.argsort([one for one, _ in expected]).tolist()
            == np.argsort([float(one[0]) for one in found]).tolist()
        )
        require_equal(answers[1]["cloze"][place], [scored(item["question"], f" {item['answer']}")])
        page = [BEGIN, *context.tokenize(item["page"], begin=False)]
        rows = log_softmax(context, page)[:-1]
        total = float(rows[range(len(rows)), page[1:]].sum())
        [rolled] = np.ravel(answers[1]["prose"][place])
        assert float(rolled) == pytest.approx(total, rel=MOST_ERROR)


def require_equal(found: list[Any], expected: list[tuple[float, bool]]) -> None:
    for (log_prob, greedy), (truth, is_best) in zip(found, expected, strict=True):
        assert float(log_prob) == pytest.approx(truth, rel=MOST_ERROR)
        assert str(greedy) == str(is_best)
