"""What every loss owes its user, over the whole registry."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from torch.utils._python_dispatch import TorchDispatchMode

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import LOSSES, SampledSoftmax, SoftmaxLoss
from tests.refusals import refused
from tests.training.loss_kit import SUB_LINEAR, doubles, gradient, make, rewind

D, V, B = 8, 60, 6
EVERY = pytest.mark.parametrize("name", LOSSES)
TARGET = torch.tensor([3, 0, -100, 59, 3, 17])
SEVERAL = torch.tensor([[3, 1], [0, -100], [-100, -100], [59, 8], [3, -100], [17, 17]])


def rows(seed: int = 1) -> Tensor:
    return doubles(B, D, seed=seed).float()


def at_step(
    criterion: SoftmaxLoss, reduction: Any, hidden_states: Tensor, target: Tensor
) -> Tensor:
    """The loss that step 0 would give, reduced that way."""
    rewind(criterion)
    criterion.reduction = reduction
    loss: Tensor = criterion(hidden_states, target)
    return loss


@EVERY
@pytest.mark.parametrize("target", [TARGET, SEVERAL], ids=["one", "several"])
def test_reductions_agree(name: str, target: Tensor) -> None:
    criterion = make(name, D, V)
    each = at_step(criterion, "none", rows(), target)
    assert (each.shape, each.dtype) == ((B,), torch.float32)
    assert bool(each.isfinite().all())
    assert each[2] == 0
    torch.testing.assert_close(at_step(criterion, "sum", rows(), target), each.sum())
    torch.testing.assert_close(at_step(criterion, "mean", rows(), target), each.sum() / 5)


@EVERY
def test_leading_dimensions_are_kept(name: str) -> None:
    criterion, hidden_states = make(name, D, V), rows()
    flat = at_step(criterion, "none", hidden_states, TARGET)
    folded = at_step(criterion, "none", hidden_states.view(2, 3, D), TARGET.view(2, 3))
    assert torch.equal(folded, flat.view(2, 3))
    assert criterion.log_prob(hidden_states.view(2, 3, D)).shape == (2, 3, V)
    assert criterion.predict(hidden_states.view(2, 3, D)).shape == (2, 3)
    one = at_step(criterion, "none", hidden_states[0], TARGET[0])
    assert torch.equal(one, at_step(criterion, "none", hidden_states[:1], TARGET[:1])[0])
    assert at_step(criterion, "none", hidden_states[2], TARGET[2]) == 0
    assert (
        criterion.log_prob(hidden_states[0]).shape,
        criterion.predict(hidden_states[0]).shape,
    ) == ((V,), ())


@EVERY
@pytest.mark.parametrize("target", [TARGET, SEVERAL], ids=["one", "several"])
def test_ignored_rows_have_no_gradient_and_change_nothing(name: str, target: Tensor) -> None:
    criterion, hidden_states = make(name, D, V), rows().requires_grad_()
    at_step(criterion, "sum", hidden_states, target).backward()  # type: ignore[no-untyped-call]
    kept = torch.tensor([0, 1, 3, 4, 5])
    assert not bool(gradient(hidden_states)[2].any())
    assert bool(gradient(hidden_states)[kept].any(1).all())
    with torch.no_grad():
        whole, part = (
            at_step(criterion, "sum", rows()[i], target[i]) for i in (torch.arange(B), kept)
        )
    torch.testing.assert_close(whole, part)


@EVERY
def test_a_batch_without_targets_is_nothing(name: str) -> None:
    criterion, hidden_states = make(name, D, V), rows().requires_grad_()
    loss = criterion(hidden_states, torch.full((B,), -100))
    loss.backward()
    assert float(loss.detach()) == 0
    for each in (hidden_states, *criterion.parameters()):
        assert not bool(gradient(each).to_dense().any())


@EVERY
def test_the_full_softmax(name: str) -> None:
    criterion, hidden_states = make(name, D, V), rows()
    log_prob = criterion.log_prob(hidden_states).detach()
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(B))
    assert torch.equal(log_prob.argmax(-1), criterion.predict(hidden_states))
    torch.testing.assert_close(
        criterion.full_loss(hidden_states, TARGET), cross_entropy(log_prob, TARGET)
    )


@EVERY
def test_export_is_the_softmax_or_refused(name: str) -> None:
    criterion, hidden_states = make(name, D, V), rows()
    if criterion.classes.form.absolute:
        with pytest.raises(InvalidRequest, match="cannot be served"):
            criterion.export()
        return
    exported = criterion.export()
    weight, bias = exported
    assert (weight.shape, bias.shape) == ((V, D), (V,))
    contexts = normalize(hidden_states, dim=-1) if exported.normalized_contexts else hidden_states
    log_prob = torch.log_softmax(contexts @ weight.T + bias, -1)
    torch.testing.assert_close(
        log_prob, criterion.log_prob(hidden_states).detach(), atol=1e-5, rtol=1e-5
    )
    with torch.no_grad():
        for parameter in criterion.parameters():
            parameter.add_(1)
    assert not torch.equal(criterion.export().weight, weight)


BAD: dict[str, tuple[str, Tensor, Tensor]] = {
    "target too large": ("target", rows(), torch.tensor([3, 0, 1, V, 3, 17])),
    "target negative": ("target", rows(), torch.tensor([3, 0, 1, -1, 3, 17])),
    "target too short": ("target", rows(), TARGET[:4]),
    "target of another shape": ("target", rows(), TARGET.view(2, 3)),
    "target too deep": ("target", rows(), TARGET[:, None, None]),
    "target of numbers": ("target", rows(), TARGET.float()),
    "hidden too wide": ("hidden_states", torch.zeros(B, D + 1), TARGET),
    "hidden_states without a dimension": ("hidden_states", torch.tensor(1.0), TARGET[0]),
    "hidden_states of integers": ("hidden_states", torch.zeros(B, D, dtype=torch.int64), TARGET),
    "hidden_states with NaN": ("hidden_states", torch.full((B, D), torch.nan), TARGET),
    "hidden_states infinite": ("hidden_states", torch.full((B, D), torch.inf), TARGET),
    "empty batch": ("hidden_states", torch.zeros(0, D), TARGET[:0]),
}


@EVERY
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(name: str, case: str) -> None:
    field, hidden_states, target = BAD[case]
    criterion = make(name, D, V)
    with refused(field):
        criterion(hidden_states, target)


@EVERY
@pytest.mark.parametrize(
    ("field", "value"),
    [("in_features", 0), ("n_classes", 1), ("reduction", "product"), ("scale", -1.0)],
)
def test_bad_construction_is_named(name: str, field: str, value: Any) -> None:
    options: dict[str, Any] = {"in_features": D, "n_classes": V, field: value}
    with refused(field):
        make(name, **options)


DRAWING = [name for name, loss in LOSSES.items() if issubclass(loss.kind, SampledSoftmax)]


@pytest.mark.parametrize("seed", [-1, 0.5, 2**31])
@pytest.mark.parametrize("name", DRAWING)
def test_bad_seeds_are_named(name: str, seed: Any) -> None:
    with refused("seed"):
        make(name, D, V, seed=seed)


BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    *(("uniform", {"n_sampled": wrong}, "n_sampled") for wrong in (0, 1.5)),
    *(("rf", {"nu": wrong}, "nu") for wrong in (0.0, float("nan"), 351.0)),
    *(("rf", {"n_features": wrong}, "n_features") for wrong in (0, 65_537)),
    *(("rf", {name: wrong}, name) for name, wrong in (("features", "sine"), ("scale", None))),
    *(("rf", {"leaf": 0}, "leaf"), ("quadratic", {"alpha": -1.0}, "alpha")),
    ("quadratic", {"n_sampled": 0}, "n_sampled"),
    *(("kmeans", {"n_lists": 0}, "n_lists"), ("kmeans", {"n_lists": 9, "nprobe": 10}, "nprobe")),
    *(("lns", {name: 0}, name) for name in ("cap", "n_uniform")),
    *(("lns", {"hashes": wrong}, "bits") for wrong in (0, 17)),
    *(("lns", {"query": "both"}, "query"), ("lns", {"hashing": "minhash"}, "hashing")),
    ("lns", {"hashing": "dwta", "window": 5}, "window"),
]


@pytest.mark.parametrize(("name", "options", "field"), BAD_OPTIONS)
def test_bad_options_are_named(name: str, options: dict[str, Any], field: str) -> None:
    with refused(field):
        make(name, D, V, **options)


@EVERY
def test_autocast_changes_nothing_but_the_rounding_of_hidden(name: str) -> None:
    criterion, hidden_states = make(name, D, V), rows().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        inside = at_step(criterion, "mean", hidden_states, TARGET)
    inside.backward()  # type: ignore[no-untyped-call]
    gradients = [gradient(each).to_dense() for each in criterion.parameters()]
    criterion.zero_grad()
    outside = at_step(criterion, "mean", hidden_states.detach().float(), TARGET)
    outside.backward()  # type: ignore[no-untyped-call]
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)
    for one, other in zip(gradients, criterion.parameters(), strict=True):
        assert torch.equal(one, gradient(other).to_dense())


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the shapes of all tensors that operations make, other than views of `known` ones."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = {each.untyped_storage().data_ptr() for each in known}
        self.shapes: set[torch.Size] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            dense = isinstance(each, Tensor) and each.layout == torch.strided
            if dense and each.untyped_storage().data_ptr() not in self.known:
                self.shapes.add(each.shape)
        return result


WIDE, DEEP, MANY = 20_000, 8, 8


def step(criterion: SoftmaxLoss, seed: int) -> None:
    hidden_states = doubles(MANY, DEEP, seed=seed).float().requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    criterion.zero_grad()
    criterion(
        hidden_states, torch.randint(criterion.n_classes, (MANY,), generator=generator)
    ).backward()


FORMS: dict[str, list[dict[str, Any]]] = {
    **{name: [{}, {"per_row": True}] for name in ("uniform", "log-uniform", "unigram")},
    **{name: [{"per_row": True}, {"per_row": False}] for name in ("lsh", "kmeans", "top-k")},
    "lns": [{"query": "label"}, {"query": "embedding"}],
}


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name in SUB_LINEAR for form in FORMS.get(name, [{}])]
)
def test_no_tensor_is_as_large_as_all_logits(name: str, form: dict[str, Any]) -> None:
    criterion = make(name, DEEP, WIDE, **form)
    step(criterion, 0)
    with Watch(criterion.parameters()) as watch:
        step(criterion, 1)
    limit = WIDE * min(MANY, DEEP)
    assert [shape for shape in watch.shapes if shape.numel() >= limit or WIDE in shape] == []
    for found in map(gradient, criterion.parameters()):
        assert found.is_sparse
        assert found.is_coalesced()
        assert found._nnz() < WIDE


LIBC = CDLL(None)


@contextmanager
def peak(found: list[int]) -> Iterator[None]:
    """Append by how many bytes memory in use rose at most, within the block."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def read(key: str) -> int:
        line = next(each for each in status.read_text().splitlines() if each.startswith(key))
        return int(line.split()[1]) * 1024

    LIBC.malloc_trim(0)  # what was freed before is no rest to take from
    reset.write_text("5")
    before = read("VmRSS:")
    yield
    found.append(read("VmHWM:") - before)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells peak memory")
@pytest.mark.parametrize("name", SUB_LINEAR)
def test_a_step_takes_far_less_memory_than_a_dense_gradient(name: str) -> None:
    wide, deep, many = 50_000, 96, 4
    sizes = {"k": 200} if name == "kmeans" else {}  # its default draws half of the classes
    criterion, found, dense = make(name, deep, wide, **sizes), list[int](), list[int]()
    with peak(dense):
        torch.ones(wide, deep)
    target = torch.tensor([1, 2, 49_000, 1])
    for seed in range(6):
        hidden_states = doubles(many, deep, seed=seed).float().requires_grad_()
        criterion.zero_grad()
        with peak(found):
            criterion(hidden_states, target).backward()
    # The first also compiles, and other threads may allocate meanwhile.
    assert min(found[1:]) < wide * deep * 4 / 2 < dense[0]


# That of top-k is none; that of LNS is one over the draw of the tables (test_lns.py).
NOT_UNBIASED = ("top-k", "lns")


@pytest.mark.parametrize(
    "name", [name for name, loss in LOSSES.items() if loss.proposal is not None]
)
@pytest.mark.parametrize("target", [TARGET, SEVERAL], ids=["one", "several"])
def test_the_inner_sum_is_z_in_the_mean(name: str, target: Tensor) -> None:
    if name in NOT_UNBIASED:
        pytest.skip("its inner sum is no estimate of Z while the tables stay")
    criterion = make(name, D, V, reduction="none", dtype=torch.float64)
    criterion.classes.weight.data.mul_(3)
    if isinstance(criterion, SampledSoftmax):
        criterion.rebuild()
    hidden_states = doubles(B, D, seed=2)
    kept = torch.tensor([0, 1, 3, 4, 5])
    with torch.no_grad():
        full = criterion.full_loss(hidden_states, target)[kept]
        ratios = torch.stack(
            [(criterion(hidden_states, target)[kept] - full).exp() for _ in range(150)]
        )
    error = (ratios.mean(0) - 1).abs()
    assert bool((error <= 4 * ratios.std(0) / len(ratios) ** 0.5 + 1e-9).all())
