import errno
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.arrays import reserve
from logitsieve.index_builder.capture import CaptureConfig, capture, stream_sample
from tests.index.samples import snapshot
from tests.refusals import refused

VOCABULARY, DIM, STEPS = 50, 8, 4


class Model(nn.Module):
    """Embedding -> tanh -> Linear, with something done to the logits afterwards."""

    def __init__(self, *, bias: bool = True, tied: bool = False, after: Any = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.inner = nn.Linear(DIM, DIM)
        self.output = nn.Linear(DIM, VOCABULARY, bias=bias)
        if tied:
            self.output.weight = self.embedding.weight
        self.after = after or (lambda logits: logits)

    def hidden(self, ids: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.inner(self.embedding(ids)))
        return hidden

    def forward(self, ids: Tensor) -> Any:
        return self.after(self.output(self.hidden(ids)))


def model(**options: Any) -> Model:
    torch.manual_seed(0)
    return Model(**options)


def batches(count: int = 6, seed: int = 1) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randint(VOCABULARY, (3, STEPS)) for _ in range(count)]


def shards(folder: Path) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(folder.glob("0*.npy"))])


class Named(NamedTuple):
    logits: Tensor
    state: Tensor


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"tied": True},
        {"after": lambda logits: Named(logits=logits, state=logits)},
        {"after": lambda logits: (logits, None)},
        {"after": lambda logits: {"logits": logits}},
    ],
)
def test_contexts_are_written_in_order(tmp_path: Path, options: dict[str, Any]) -> None:
    net = model(**options).train()
    data = batches()
    summary = capture(net, data, tmp_path / "a" / "out", config=CaptureConfig(dtype="float32"))
    out = tmp_path / "a" / "out"
    with torch.no_grad():
        expected = torch.cat([net.hidden(ids).reshape(-1, DIM) for ids in data]).numpy()
    np.testing.assert_array_equal(shards(out), expected)
    np.testing.assert_array_equal(np.load(out / "weight.npy"), net.output.weight.detach().numpy())
    bias = np.zeros(VOCABULARY) if net.output.bias is None else net.output.bias.detach().numpy()
    np.testing.assert_array_equal(np.load(out / "bias.npy"), bias)
    assert json.loads((out / "capture.json").read_text()) == summary
    assert summary["output_layer"] == "output"
    assert summary["rows"] == summary["rows_seen"] == 72
    assert net.training
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


def test_batches_may_be_an_iterator_of_tuples_or_mappings(tmp_path: Path) -> None:
    def mixed() -> Iterator[Any]:
        for number, ids in enumerate(batches()):
            yield {"ids": ids} if number % 2 else (ids,)

    capture(model(), mixed(), tmp_path / "mixed")
    capture(model(), batches(), tmp_path / "plain")
    np.testing.assert_array_equal(shards(tmp_path / "mixed"), shards(tmp_path / "plain"))


@pytest.mark.parametrize(
    "make", [partial(ThreadPoolExecutor, 3), partial(ProcessPoolExecutor, 1, get_context("spawn"))]
)
def test_workers_give_the_same_contexts(tmp_path: Path, make: Callable[[], Executor]) -> None:
    torch.set_num_threads(1)
    config = CaptureConfig(dtype="float32", max_rows=65)
    with make() as executor:
        capture(model(), batches(), tmp_path / "many", config=config, executor=executor, load=model)
    capture(model(), batches(), tmp_path / "one", config=config)
    assert snapshot(tmp_path / "many") == snapshot(tmp_path / "one")


def test_processes_need_load_and_progress_counts_rows(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as executor, refused("executor", "got Pr"):
        capture(model(), batches(), tmp_path / "out", executor=executor)
    assert not list(tmp_path.iterdir())
    seen: list[int] = []
    capture(model(), batches(2), tmp_path / "out", progress=lambda _, rows, __: seen.append(rows))
    assert seen == [12, 24]


def test_shards_and_dtype(tmp_path: Path) -> None:
    config = CaptureConfig(shard_rows=30, max_rows=65)
    summary, rows = capture(model(), batches(), tmp_path / "out", config=config), tmp_path / "out"
    names = sorted(path.name for path in rows.glob("0*.npy"))
    assert names == ["00000.npy", "00001.npy", "00002.npy"]
    assert (shards(rows).shape, shards(rows).dtype.name) == ((65, DIM), "float16")
    assert (summary["rows"], summary["rows_seen"]) == (65, 72)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is asked to hold rows before they are written: a hole would be a SIGBUS."""
    asked: list[tuple[int, int]] = []

    def full(file: Path, array: np.memmap, start: int, stop: int) -> None:
        asked.append((start, stop))
        if stop > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, array, start, stop)

    monkeypatch.setattr(stream_sample, "reserve", full)
    with pytest.raises(OSError, match="No space left"):
        capture(model(), batches(), tmp_path / "out")
    assert asked == [(0, 12), (12, 24), (24, 36)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (lambda logits: torch.log_softmax(logits, -1), "log_softmax"),
        (lambda logits: logits / 0.7, "scaled by 1.4"),
        (lambda logits: torch.tanh(logits / 3) * 3, "softcap"),
        (lambda logits: logits.masked_fill(torch.arange(VOCABULARY) < 3, -torch.inf), "mask"),
        (lambda logits: logits[:, -1], "one row of 50 logits for each"),
        (lambda logits: "text", "output str"),
        (lambda logits: logits[..., :20], "no nn.Linear with 20 outputs"),
    ],
)
def test_logits_that_are_not_linear(tmp_path: Path, after: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        capture(model(after=after), batches(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_on_the_output_layer_is_refused(tmp_path: Path) -> None:
    class Adapted(nn.Linear):
        def forward(self, hidden: Tensor) -> Tensor:
            return super().forward(hidden) + 0.1 * super().forward(hidden.flip(-1))

    net = model()
    net.output = Adapted(DIM, VOCABULARY)
    with pytest.raises(InvalidRequest, match="adapter"):
        capture(net, batches(), tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_precisions_pass(tmp_path: Path, dtype: torch.dtype) -> None:
    capture(model().to(dtype), batches(), tmp_path / "out")
    assert np.load(tmp_path / "out" / "weight.npy").dtype == np.float32


def test_an_output_layer_may_be_named_and_its_forward_is_put_back(tmp_path: Path) -> None:
    capture(model(), batches(), tmp_path / "out", output_layer="output")
    net = model()
    capture(net, batches(), tmp_path / "again", output_layer=net.output)
    with pytest.raises(InvalidRequest, match="inner, output"):
        capture(model(), batches(), tmp_path / "third", output_layer="head")
    linear = nn.Linear(8, 50)
    linear.forward = replacement = linear.forward  # type: ignore[method-assign]
    capture(linear, [torch.ones(16, 8)] * 3, tmp_path / "captured")
    assert vars(linear)["forward"] is replacement


def test_bad_arguments_name_their_field(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with refused("out"):
        capture(model(), batches(), tmp_path / "there")
    infinite = [torch.zeros(1, 1), torch.full((1, 1), 1e6)]
    for data, reason in (
        ([], "got no batch"),
        ([torch.zeros(0, 1)], "got no rows"),
        (infinite, "got a context that is not finite"),
    ):
        with refused("batches", reason):
            capture(nn.Linear(1, 2), data, tmp_path / "out")
    for options in ({"max_rows": 0}, {"shard_rows": 0}, {"dtype": "int8"}):
        with refused(next(iter(options))):
            CaptureConfig(**options)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_cap_far_above_the_logits_of_the_text_is_seen(tmp_path: Path) -> None:
    """At these logits bfloat16 rounds more than the cap changes."""
    capped = model(after=lambda logits: torch.tanh(logits / 30) * 30).to(torch.bfloat16)
    with pytest.raises(InvalidRequest, match=r"logits of 32 h up to .*softcap"):
        capture(capped, batches(), tmp_path / "out")


def test_a_layer_that_is_called_by_keyword(tmp_path: Path) -> None:
    class Named(nn.Linear):
        def __call__(self, hidden: Tensor) -> Any:
            return super().__call__(input=hidden)

    net = model()
    net.output = Named(DIM, VOCABULARY)
    assert capture(net, batches(), tmp_path / "out")["dim"] == DIM
