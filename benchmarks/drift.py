"""Precision before, during and after a change of domain: a screen alone, and AUTO with its guard.

`python -m benchmarks.drift` builds an index on synthetic contexts of one domain, answers rows of
it, of another domain, and of the first again, judges every row, and draws docs/images/drift.svg.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot

from benchmarks.plots import IMAGES, RESULTS, STYLE
from logitsieve.api.results import TopK
from logitsieve.decoding import LocalDecoder
from logitsieve.evaluation import Evaluation, OperatingPoint, evaluate
from logitsieve.heads import Head
from logitsieve.index import Index
from logitsieve.index_builder import BuildConfig, build
from logitsieve.server.models.served import Served
from logitsieve.server.precision.precision_metrics import shares
from logitsieve.server.precision.shadow import Sample, judge
from logitsieve.server.rpc.arguments import to_aim
from logitsieve.v1 import decoder_pb2 as pb

V, D, TOPICS, K = 1000, 32, 20, 5
TARGET = {"p1": 0.98, "p5": 0.97}
CONFIG = BuildConfig(clusters_tried=(24,), rounds=1, steps=20, batch_rows=128)
PHASES = ((1, 1500), (2, 3000), (1, 3000))  # (domain, rows)
SMOOTH = 100  # rows of the moving mean


def main() -> None:
    """Answer, judge, keep the curves and draw them."""
    results = measure()
    (RESULTS / "drift.json").write_text(json.dumps(results) + "\n", encoding="utf-8")
    mpl.use("svg")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        draw(results)
        pyplot.savefig(IMAGES / "drift.svg", metadata={"Date": None}, bbox_inches="tight")


def contexts(domain: int, rows: int, seed: int) -> np.ndarray:
    """float32 [rows, D] around the topics of a domain."""
    topics = np.random.default_rng(domain).standard_normal((TOPICS, D)) * 2
    random = np.random.default_rng([domain, seed])
    noise = 0.25 * random.standard_normal((rows, D))
    return (topics[random.integers(TOPICS, size=rows)] + noise).astype(np.float32)


def measure() -> dict[str, Any]:
    """P@5 and the level of the guard, row by row."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((V, D)) * np.linspace(1.5, 0.5, V)[:, None]
    bias = random.standard_normal(V)
    with tempfile.TemporaryDirectory() as folder:
        index = build(
            weight.astype(np.float32),
            bias.astype(np.float32),
            contexts(1, 8000, 0),
            Path(folder) / "drift" / "1",
            target_precision=TARGET,
            config=CONFIG,
        )
        served = serve_plain(index)
        first = served.at(to_aim(pb.Target()), 1, K).point
        alone = to_aim(pb.Target(head=pb.Head(name=first.head, knobs=first.knobs)))
        curves: dict[str, list[float]] = {"screen": [], "auto": [], "level": []}
        for phase, (domain, rows) in enumerate(PHASES):
            for row in contexts(domain, rows, phase + 1):
                one, judgement = answered(served, row[None], alone), auto(served, row[None])
                curves["screen"].append(judge(one).hits[K] / K)
                curves["auto"].append(judgement)
                curves["level"].append(served.level)
    return {"target": TARGET["p5"], "phases": PHASES, "vocab_size": V, "dim": D, **curves}


def serve_plain(index: Index) -> Served:
    """The screen without escalation, which would answer the other domain exactly by itself."""
    decoder, hidden = LocalDecoder(index), contexts(1, 4000, 9)
    exact, points = index.head("exact"), []
    for cost, probes in enumerate((1, 2, 4, 8), 1):
        head = index.head("screen").with_knobs(probes=probes, escalate=-1.0)
        points.append(measured(head, evaluate(head, exact, [hidden]), cost))
    points.append(measured(exact, evaluate(exact, exact, [hidden]), 100))
    decoder.auto = decoder.auto.over(points)
    return Served(decoder)


def measured(head: Head, evaluation: Evaluation, cost: float) -> OperatingPoint:
    """A point of AUTO; `cost` only orders them."""
    return OperatingPoint(
        head=head.name,
        knobs=dict(head.knobs),
        proven=head.proves,
        mean={k: found.mean for k, found in evaluation.precision.items()},
        low={k: found.low for k, found in evaluation.precision.items()},
        us_per_row={1: cost},
        mass_kept=evaluation.mass_kept,
        candidates=evaluation.scanned[K],
    )


def answered(served: Served, hidden: np.ndarray, aim: Any) -> Sample:
    """A row as a server answers it."""
    priced = served.at(aim, 1, K)
    reply = priced.point.topk(hidden, K)
    answer = TopK(reply.ids, reply.logits, reply.answer.exact, reply.answer.scanned)
    return Sample(served, priced, hidden, answer)


def auto(served: Served, hidden: np.ndarray) -> float:
    """P@5 of AUTO's answer, from which it learns."""
    sample = answered(served, hidden, to_aim(pb.Target()))
    judgement = judge(sample)
    verdicts = [*judgement.dropped, (sample.priced.point, judgement.hits)]
    served.learn([(point, shares(hits)) for point, hits in verdicts])
    return judgement.hits[K] / K


def draw(results: dict[str, Any]) -> None:
    """Moving means of P@5, and the level below."""
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(8, 4), sharex=True, height_ratios=(4, 1)
    )
    window = np.ones(SMOOTH) / SMOOTH
    for name, label, colour in (
        ("screen", "the screen alone", "#b9bec4"),
        ("auto", "AUTO with its guard", "#1b7f5c"),
    ):
        mean = np.convolve(results[name], window, "valid")
        above.plot(np.arange(len(mean)) + SMOOTH, mean, color=colour, label=label)
    above.axhline(results["target"], color="black", linewidth=0.8, linestyle=":", label="target")
    above.set(ylabel=f"P@{K}, mean of {SMOOTH} rows", ylim=(0, 1.02))
    above.legend(loc="lower right", frameon=False)
    below.step(range(len(results["level"])), results["level"], color="#1b7f5c", where="post")
    below.set(ylabel="guard level", xlabel="judged rows")
    start = 0
    for domain, rows in results["phases"]:
        for axes in (above, below):
            axes.axvline(start, color="#dddddd", linewidth=0.8)
        above.text(start + rows / 2, 1.04, f"domain {domain}", ha="center")
        start += rows
    figure.tight_layout()


if __name__ == "__main__":
    main()
