import copy
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from logitsieve.training import LOSSES, SampledSoftmax
from tests.training.loss_kit import doubles
from tests.training.test_in_torch import assert_as_one, halves

D, V, B = 8, 400, 6
EVERY, STEPS, MIDDLE = 4, 24, 22  # MIDDLE: when rows have moved that are not indexed yet
OPTIONS: dict[str, dict[str, Any]] = {  # few candidates: most rows are touched by one process alone
    "lsh": {"k": 8, "n_uniform": 2},
    "lns": {"cap": 8, "n_uniform": 2},
    "rf": {"n_sampled": 8},
}


class Lookup(nn.Module):
    """A hidden row for each class, a layer, and the loss."""

    def __init__(self, criterion: SampledSoftmax) -> None:
        super().__init__()
        self.layer = nn.Linear(D, D)
        self.criterion = criterion

    def forward(self, target: Tensor) -> Tensor:
        loss: Tensor = self.criterion(self.hidden_states(target), target)
        return loss

    def hidden_states(self, target: Tensor) -> Tensor:
        rows: Tensor = self.layer(doubles(V, D, seed=7).float()[target])
        return rows


def classes_of(rank: int, step: int) -> Tensor:
    """Odd or even ones, by the rank; in the first step the second process has none."""
    if (rank, step) == (1, 0):
        return torch.full((B,), -100)
    return 2 * ((torch.arange(B) + step * B) % 30) + rank


def followed(rank: int, name: str) -> dict[str, Any]:
    """What one process has after a training with weights of its own to begin with."""
    torch.manual_seed(rank)
    criterion = LOSSES[name](D, V, **OPTIONS[name])
    assert isinstance(criterion, SampledSoftmax)
    model = Lookup(criterion)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
    criterion.track(optimizer, every=EVERY)
    seen = torch.arange(60)
    losses, middle = [criterion.full_loss(model.hidden_states(seen), seen)], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        parallel(classes_of(rank, step)).backward()
        optimizer.step()
        if step + 1 == MIDDLE:
            middle = copy.deepcopy(model.state_dict())
    losses.append(criterion.full_loss(model.hidden_states(seen), seen))
    rebuilt = copy.deepcopy(criterion)
    rebuilt.rebuild()
    kept, again = (cast(Any, each.proposal.index).state_dict() for each in (criterion, rebuilt))
    found = {"losses": losses, "middle": middle, "end": model.state_dict()}
    return {**found, "kept": kept, "rebuilt": again, "key": criterion.random.next().key}


def one_of_two(rank: int, folder: str) -> None:
    """All that one process trains."""
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder}/meeting", timedelta(minutes=2)
    torch.distributed.init_process_group("gloo", meeting, patience, world_size=2, rank=rank)
    found = {name: followed(rank, name) for name in OPTIONS}
    torch.save({**found, "halves": halves(rank)}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results of each loss, and `halves`, by process, of which the second is this one."""
    folder = tmp_path_factory.mktemp("processes")
    other = spawn(one_of_two, (str(folder),), nprocs=1, join=False)  # type: ignore[no-untyped-call]
    one_of_two(1, str(folder))
    other.join()
    first, second = (torch.load(folder / f"{rank}.pt") for rank in range(2))
    return first, second


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and numbers of nested dicts, with where they are."""
    if not isinstance(state, dict):
        yield path, state
        return
    for key, value in state.items():
        yield from leaves(value, f"{path}/{key}")


def test_two_processes_equal_one_with_twice_the_batch(processes: Any) -> None:
    assert_as_one(*(each["halves"] for each in processes))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("when", ["middle", "end"])
def test_processes_have_equal_states(processes: Any, name: str, when: str) -> None:
    one, other = (dict(leaves(each[name][when])) for each in processes)
    assert one.keys() == other.keys()
    for path, value in one.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[path])), path
    dirty = next(value for path, value in one.items() if path.endswith("dirty"))
    assert bool(dirty.numel()) == (when == "middle")
    assert processes[0][name]["key"] != processes[1][name]["key"], "they draw alike"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_kept_is_that_of_the_weights(processes: Any, name: str, rank: int) -> None:
    found = processes[rank][name]
    kept, rebuilt = (dict(leaves(found[key])) for key in ("kept", "rebuilt"))
    assert kept.keys() == rebuilt.keys()
    for path, value in rebuilt.items():
        if path != "/updates":  # of a tree: how many since it was made
            torch.testing.assert_close(kept[path], value)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_loss_falls(processes: Any, name: str) -> None:
    before, after = processes[0][name]["losses"]
    assert after < 0.7 * before
