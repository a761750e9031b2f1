from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from logitsieve.decoding import LocalDecoder
from logitsieve.heads._base.head import Softmax
from logitsieve.index import HeadEntry, Index, open_index, write_index
from logitsieve.index.calibration import pack_contexts
from logitsieve.server.config import ServeConfig
from logitsieve.server.console.access import ConsoleAccess
from logitsieve.server.console.api import Api
from logitsieve.server.console.app import application, console
from logitsieve.server.console.desk import Desk
from logitsieve.server.console.standalone import routes_of
from logitsieve.server.models.routes import Routes
from logitsieve.training.trainer import LanguageModel
from tests.server.running import calibration, entries
from tests.synthetic import certified_arrays, make_hidden, make_softmax, screen_arrays

KEPT = 48  # contexts
SPOKEN_WORDS = 40
# In the places of the first words.
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "'\"&amp;</script><script>alert(2)</script>",
    "\u202eright to left",
    "nul\0bell\7",
    "long" * 2500,
    "",
    " spaces  ",
    "{{ 7 * 7 }}",
]
MEASURED = calibration(
    entries("exact", (9.0, 8.0, 7.0), 1.0),
    entries("certified", (5.0, 5.0, 4.0), 1.0),
    entries("screen", (1.0, 1.0, 1.0), 0.9, probes=1),
    entries("screen", (2.0, 2.0, 2.0), 0.99, probes=3),
    entries("screen", (3.0, 3.0, 3.0), 0.98, probes=5),
)


def write_shown(folder: Path, version: int, **more: Any) -> Path:
    """demo@1 and demo@2 with words, contexts and points."""
    softmax = make_softmax(seed=version)
    return write_index(
        folder / "demo" / str(version),
        softmax=softmax,
        parts={"screen": screen_arrays(softmax), "sketch": certified_arrays(softmax)},
        heads={
            "exact": HeadEntry(),
            "certified": HeadEntry("sketch"),
            "screen": HeadEntry("screen", {"probes": 1}),
        },
        default_head="screen",
        vocabulary=[*HOSTILE, *(f"word{number}" for number in range(len(HOSTILE), 300))],
        calibration={**MEASURED, "contexts": pack_contexts(make_hidden(KEPT))},
        config={"target_precision": {"p1": 0.95}},
        **more,
    )


def write_bare(folder: Path) -> Path:
    """bare@1: no words, no contexts, no points, no screen."""
    return write_index(
        folder / "bare" / "1",
        softmax=make_softmax(vocab_size=40, dim=8),
        parts={},
        heads={"exact": HeadEntry()},
        default_head="exact",
    )


def write_spoken(folder: Path) -> Path:
    """spoken@1 and the language model whose softmax it has, beside it."""
    torch.manual_seed(1)
    model = LanguageModel(SPOKEN_WORDS, 10, layers=2)
    torch.nn.init.normal_(model.embedding.weight)
    (folder / "spoken").mkdir()
    model.save(folder / "spoken")
    saved = LanguageModel.load(folder / "spoken").output
    weight, bias = (each.detach().numpy() for each in (saved.weight, saved.bias))
    return write_index(
        folder / "spoken" / "1",
        softmax=Softmax(weight, bias),
        parts={},
        heads={"exact": HeadEntry()},
        default_head="exact",
        vocabulary=["<unk>", "<eos>", *(f"say{number}" for number in range(2, SPOKEN_WORDS))],
    )


@pytest.fixture(scope="package")
def shown_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    for version in (1, 2):
        write_shown(folder, version)
    write_bare(folder)
    write_spoken(folder)
    return folder


@pytest.fixture(scope="package")
def routes(shown_models: Path, kernel_cache: Path) -> Routes:
    paths = sorted(shown_models.glob("*/[12]"))
    return routes_of([open_index(path, kernel_cache=kernel_cache) for path in paths])


@pytest.fixture(scope="package")
def demo(routes: Routes) -> LocalDecoder:
    return routes.served("demo@1").decoder


@pytest.fixture(scope="package")
def bare(routes: Routes) -> LocalDecoder:
    return routes.served("bare").decoder


@pytest.fixture(scope="package")
def spoken(routes: Routes) -> LocalDecoder:
    return routes.served("spoken").decoder


@pytest.fixture
def port(routes: Routes) -> Iterator[TestClient]:
    """A console without a server; requests are made in this process."""
    desk = Desk(lambda: routes, answer_s=60)  # kernels may be compiled meanwhile
    api = Api(desk, ServeConfig(), registry=None, ready=lambda: True)
    app = application(
        lambda: b"series 1\n", lambda: False, console(api, ConsoleAccess(None, secure=False))
    )
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=True) as client:
        yield client
    desk.close()


@pytest.fixture
def circle(tmp_path: Path, kernel_cache: Path) -> Callable[..., Index]:
    """An index whose rows lie on a circle; list 0 holds the right half, list 1 the left."""
    angles = np.linspace(0, 2 * np.pi, 20, endpoint=False) + 0.05
    weight = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    halves = [np.flatnonzero(weight[:, 0] >= -0.4), np.flatnonzero(weight[:, 0] <= 0.4)]

    def write(*, screen: bool = True, escalate: float = -1.0, **options: Any) -> Index:
        arrays = {
            "centroids": np.array([[1, 0], [-1, 0]], np.float32),
            "offsets": np.cumsum([0, *map(len, halves)]).astype(np.int32),
            "ids": np.concatenate(halves).astype(np.int32),
        }
        heads = {"exact": HeadEntry()} | (
            {"screen": HeadEntry("screen", {"escalate": escalate})} if screen else {}
        )
        path = write_index(
            tmp_path / "models" / "circle" / "3",
            softmax=Softmax(weight, np.zeros(len(angles), np.float32)),
            parts={"screen": arrays} if screen else {},
            heads=heads,
            default_head="exact",
            **options,
        )
        return open_index(path, verify="sizes", kernel_cache=kernel_cache)

    return write
