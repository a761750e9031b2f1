from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.evaluation import Evaluation, evaluate
from logitsieve.heads import Head
from logitsieve.index import Index
from logitsieve.index_builder import BuildConfig, build
from tests.sweeps import swept
from tests.synthetic import make_softmax

V, D = 400, 24
TARGET = {"p1": 0.98, "p5": 0.97}
# More clusters than topics, so that none is wide; times decide the rest, and may.
CONFIG = BuildConfig(clusters_tried=(28,), rounds=1, steps=20, batch_rows=128, guard=0.02)
SOFTMAX = make_softmax(vocab_size=V, dim=D)


def domain(seed: int, rows: int) -> np.ndarray:
    """float32 [rows, D]: contexts around the topics of one domain, and some that both share."""
    shared = np.random.default_rng(0).standard_normal((4, D)) * 2
    random = np.random.default_rng(seed)
    topics = np.concatenate([shared, random.standard_normal((16, D)) * 2])
    noise = 0.25 * random.standard_normal((rows, D))
    return (topics[random.integers(len(topics), size=rows)] + noise).astype(np.float32)


def judged(index: Index, head: Head, hidden_states: np.ndarray) -> Evaluation:
    return evaluate(head, index.head("full"), [hidden_states], (1, 5))


@pytest.mark.parametrize(("one", "other"), swept([(1, 2), (2, 1)], [(1, 2)]))
def test_what_one_domain_promised_is_kept_on_another(tmp_path: Path, one: int, other: int) -> None:
    given: Any = {"target_precision": TARGET, "config": CONFIG}
    out = tmp_path / "lm" / "1"
    index = build(SOFTMAX.weight, SOFTMAX.bias, domain(one, 8000), out, **given)
    screen, elsewhere = index.head("screen"), domain(other, 3000)
    at_home = judged(index, screen, domain(one, 9000)[8000:])
    abroad = judged(index, screen, elsewhere)
    without = judged(index, screen.with_knobs(escalate=-1.0), elsewhere)
    for name, promised in TARGET.items():
        k = int(name[1:])
        assert at_home.precision[k].low >= promised - 0.01  # what was chosen is a little lucky
        assert abroad.precision[k].low >= promised
        assert without.precision[k].mean < promised - 0.1
    assert abroad.coverage[1] < at_home.coverage[1]
