from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from logitsieve.console.app import Pages
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.index.calibration import pack_contexts
from logitsieve.server.http.application import application
from logitsieve.server.models.routes import Routes, Version
from logitsieve.server.models.served import Served
from logitsieve.server.security import ApiKeys
from tests.server.conftest import measured as measured
from tests.server.conftest import measured_models as measured_models
from tests.server.http.test_application import view_of
from tests.server.running import calibration, entries
from tests.synthetic import make_hidden, make_softmax, write_heads

KEPT = 48  # contexts
# In the places of the first words.
HOSTILE = [
    *("<img src=x onerror=alert(1)>", "'\"&amp;</script><script>alert(2)</script>"),
    *("\u202eright to left", "nul\0bell\7", "long" * 2500, "", " spaces  ", "{{ 7 * 7 }}"),
]
MEASURED = calibration(
    entries("full", (9.0, 8.0, 7.0), 1.0),
    entries("sketch", (5.0, 5.0, 4.0), 1.0),
    entries("screen", (1.0, 1.0, 1.0), 0.9, probes=1),
    entries("screen", (2.0, 2.0, 2.0), 0.99, probes=3, escalate=0.31637835),
    entries("screen", (3.0, 3.0, 3.0), 0.98, probes=5),
)


def write_shown(folder: Path, version: int) -> Path:
    return write_heads(
        folder / "demo" / str(version),
        make_softmax(seed=version),
        "sketch",
        "screen",
        default_head="screen",
        vocabulary=[*HOSTILE, *(f"word{number}" for number in range(len(HOSTILE), 300))],
        calibration={**MEASURED, "contexts": pack_contexts(make_hidden(KEPT))},
        config={"target_precision": {"p1": 0.95}},
    )


@pytest.fixture(scope="package")
def shown_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """demo@1 and demo@2, and bare@1: no words, no contexts, no points, no screen."""
    folder = tmp_path_factory.mktemp("shown")
    for version in (1, 2):
        write_shown(folder, version)
    write_heads(folder / "bare" / "1", make_softmax(vocab_size=40, dim=8))
    return folder


@pytest.fixture(scope="package")
def routes(shown_models: Path) -> Routes:
    routes = Routes()
    for path in sorted(shown_models.glob("*/[12]")):
        index = open_index(path)
        version = Version(index.name, index.version, Served(LocalDecoder(index)))
        routes = routes.with_version(version)
    return routes


@pytest.fixture(scope="package")
def demo(routes: Routes) -> LocalDecoder:
    return routes.served("demo@1").whole


@pytest.fixture(scope="package")
def bare(routes: Routes) -> LocalDecoder:
    return routes.served("bare").whole


@contextmanager
def shown(
    routes: Callable[[], Routes], api_keys: ApiKeys | None = None, secure: bool = False
) -> Iterator[Starlette]:
    """The HTTP port's application with a console, without a server."""
    view = replace(view_of(None), routes=routes, api_keys=api_keys, secure=secure)
    pages = Pages(view, answer_s=60)  # kernels may be compiled meanwhile
    yield application(lambda: b"series 1\n", view.ready, console=pages, local=api_keys is None)
    pages.close()


@pytest.fixture
def port(routes: Routes) -> Iterator[TestClient]:
    with shown(lambda: routes) as app, TestClient(app, "http://localhost") as client:
        yield client
