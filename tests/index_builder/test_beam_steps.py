import numpy as np

from logitsieve.index_builder.calibrate import BEAMS, PAIRS, StepJudge
from tests.oracle import logits64
from tests.synthetic import make_head, make_hidden, make_softmax, screen_arrays

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)


def true_pairs(rows: np.ndarray) -> list[list[int]]:
    """The best pairs of each group in float64, as indices in its log-probabilities."""
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, rows)
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    groups = log_p.reshape(len(rows) // BEAMS, -1)
    return list(np.argsort(-groups, axis=1, kind="stable")[:, :PAIRS].tolist())


def test_exact_steps_are_right_and_others_by_their_share_of_pairs() -> None:
    full, screen = make_head("full", SOFTMAX), make_head("screen", SOFTMAX)
    judge = StepJudge(full, [HIDDEN[:40], HIDDEN[40:]])
    steps = judge.judge(full)
    assert steps is not None
    assert (steps.mean, steps.same, steps.log_z_error) == (1.0, 1.0, 0.0)
    arrays = screen_arrays(SOFTMAX)
    count, dim = arrays["centroids"].shape
    # The screen believes that its lists hold all: an estimate far from the truth.
    nothing = {
        "outside_rows": np.zeros((count, dim), np.float32),
        "outside_biases": np.full(count, -60, np.float32),
        "outside_spreads": np.ones(count, np.float32),
    }
    screen = make_head("screen", SOFTMAX, arrays=arrays | nothing, log_z_error=1.0)
    found = judge.judge(screen)
    assert found is not None
    best, pairs = screen.best_with_log_z(HIDDEN, PAIRS), true_pairs(HIDDEN)
    log_p = best.logits - best.log_z[:, 1:2]
    shares, same = [], []
    for group, true in enumerate(pairs):
        rows = slice(group * BEAMS, (group + 1) * BEAMS)
        keys = np.arange(BEAMS)[:, None] * SOFTMAX.vocab_size + best.ids[rows]
        order = np.argsort(-log_p[rows].ravel(), kind="stable")[:PAIRS]
        ours = keys.ravel()[order].tolist()
        shares.append(len({*ours} & {*true}) / PAIRS)
        same.append(ours == true)
    assert 0 < found.mean < 1
    np.testing.assert_allclose([found.mean, found.same], [np.mean(shares), np.mean(same)])
    assert found.low < found.mean
    assert found.log_z_error > 0.01


def test_fewer_rows_than_a_group_judge_nothing() -> None:
    full = make_head("full", SOFTMAX)
    assert StepJudge(full, [HIDDEN[:4]]).judge(full) is None
