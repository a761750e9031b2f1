from dataclasses import replace

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit.svd import fit_svd, preview_arrays, preview_ranks, rotation
from logitsieve.index_builder.fitting import TARGET, heldout_sample
from tests.index_builder.clustered import make_inputs
from tests.synthetic import make_head, make_softmax


def low_rank(vocab_size: int = 200, dim: int = 16, rank: int = 4) -> Softmax:
    """Rows of which nearly all lies in a few directions."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((vocab_size, rank)) @ random.standard_normal((rank, dim))
    weight += 0.01 * random.standard_normal((vocab_size, dim))
    return Softmax(weight.astype(np.float32), np.zeros(vocab_size, np.float32))


def test_the_rotation_is_that_of_the_singular_vectors() -> None:
    weight = make_softmax(dim=12).weight
    turned = rotation(weight)
    np.testing.assert_allclose(turned @ turned.T, np.eye(12), atol=1e-12)
    _, singular, vectors = np.linalg.svd(weight.astype(np.float64), full_matrices=False)
    np.testing.assert_allclose(np.linalg.norm(weight @ turned.T, axis=0), singular, rtol=1e-9)
    np.testing.assert_allclose(np.abs((turned * vectors).sum(axis=1)), 1, rtol=1e-9)


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 9000])
def test_the_preview_holds_every_row_in_groups_of_sixteen(vocab_size: int) -> None:
    softmax = make_softmax(vocab_size, 12)
    arrays = preview_arrays(softmax, 5)
    assert arrays["basis"].shape == (5, 12)
    assert arrays["preview"].shape == (-(-vocab_size // 16), 5, 16)
    rows = arrays["preview"].transpose(0, 2, 1).reshape(-1, 5)
    turned = softmax.weight @ arrays["basis"].T
    np.testing.assert_allclose(rows[:vocab_size], turned, rtol=1e-3, atol=1e-4)
    assert (rows[vocab_size:] == 0).all()


def test_ranks_are_what_a_head_needs() -> None:
    softmax, inputs = make_inputs()
    arrays = preview_arrays(softmax, 16)
    hidden_states, labels = heldout_sample(inputs)
    needed = preview_ranks(softmax, arrays, 6, hidden_states, labels)
    count = int(np.median(needed[:, 0]))
    head = make_head("svd", softmax, arrays=arrays, width=6, candidates=count)
    found = head.topk(hidden_states, 1).ids[:, 0] == labels[:, 0]
    assert 0.4 < found.mean() < 1
    assert (found == (needed[:, 0] <= count)).mean() > 0.99, "but for the rounding of ties"


def test_the_operating_point_meets_the_target_where_the_rank_allows() -> None:
    _, inputs = make_inputs()
    made = fit_svd(replace(inputs, config=BuildConfig(svd_width=16)))
    hidden_states, labels = heldout_sample(inputs)
    head = make_head("svd", inputs.softmax, arrays=made.arrays, **made.knobs)
    assert (head.topk(hidden_states, 1).ids[:, 0] == labels[:, 0]).mean() >= TARGET - 1e-3
    assert made.knobs["candidates"] < inputs.vocab_size


def test_widths_are_as_asked_or_as_low_as_the_rank() -> None:
    softmax, (_, inputs) = low_rank(), make_inputs()
    hidden_states = inputs.sample[:500]
    labels = make_head("full", softmax).topk(hidden_states, 5).ids.astype(np.int64)
    arrays = preview_arrays(softmax, 16)
    two, four, all_ = (
        preview_ranks(softmax, arrays, width, hidden_states, labels)[:, 0].max()
        for width in (2, 4, 16)
    )
    assert all_ == 1
    assert four <= 5 < two
    configs = [BuildConfig(svd_width=width) for width in (None, 3, 999)]
    ranks = [fit_svd(replace(inputs, config=config)).summary["rank"] for config in configs]
    assert ranks == [4, 3, 16]
