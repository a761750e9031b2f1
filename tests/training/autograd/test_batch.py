import torch

from logitsieve.training.autograd.batch import Targets


def test_targets_slice_and_share() -> None:
    targets = Targets(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([4, 5, 6, 7, 8]), 3, False)
    part = targets.slice(1, 3)
    assert (part.rows.tolist(), part.classes.tolist(), part.count) == ([0, 1, 1], [6, 7, 8], 2)
    assert part.shares(torch.float64).tolist() == [1, 0.5, 0.5]
    assert part.sums(torch.tensor([1.0, 2.0, 4.0])).tolist() == [1, 6]
    assert part.most(torch.tensor([1.0, 2.0, 4.0])).tolist() == [1, 4]
