from __future__ import annotations

import numpy as np
import pytest
import torch

from logitsieve.training.trainer.corpus import WINDOW, TextStreams, epoch_shift, windows


@pytest.mark.parametrize("shift", [0, 3, 49])
def test_batches_continue_each_stream(shift: int) -> None:
    ids = np.arange(50, dtype=np.int32)
    streams = TextStreams(ids, streams=3, steps=8, shift=shift)
    assert len(streams) == 2
    (first, targets), (second, _) = streams[0], streams[1]
    torch.testing.assert_close(targets, (first + 1) % 50)
    torch.testing.assert_close(second[:, 0], (first[:, -1] + 1) % 50)
    torch.testing.assert_close(first[:, 0], (shift + torch.arange(3) * 16) % 50)
    with pytest.raises(IndexError):
        streams[2]


def test_all_leaves_out_fewer_words_than_there_are_streams() -> None:
    ids = np.arange(52, dtype=np.int32)
    seen = torch.cat([targets.flatten() for _, targets in TextStreams(ids, 3, 8).all()])
    assert sorted(seen.tolist()) == list(range(1, 52))


def test_an_epoch_begins_where_its_number_says() -> None:
    assert epoch_shift(10**12, 5, 7) == epoch_shift(10**12, 5, 7)
    assert len({epoch_shift(10**12, seed, epoch) for seed in range(3) for epoch in range(9)}) == 27


def test_windows_are_spread_over_the_text() -> None:
    ids = np.arange(7_069, dtype=np.int32)
    every = torch.cat(list(windows(ids, 10**6)))
    assert every.shape == (100, WINDOW)
    torch.testing.assert_close(every.flatten(), torch.arange(7_000))
    some = torch.cat(list(windows(ids, 710)))
    assert some.shape == (10, WINDOW)
    assert some[[0, -1]].equal(every[[0, -1]])
    assert torch.cat(list(windows(ids[:30], 5))).tolist() == [list(range(30))]
