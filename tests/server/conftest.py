from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.server.materials import Gate, Pair, authority, gated
from tests.server.running import (
    MEASURED,
    WAIT_S,
    Loop,
    Running,
    config_for,
    running,
    write_four,
    write_model,
)

LIMITS = {"max_rows": 256, "max_k": 128, "max_samples": 64, "max_constraint_ids": 1000}
Serve = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_four(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def server(loop: Loop, models: Path) -> Iterator[Running]:
    with running(loop, config_for(models, **LIMITS)) as run:
        yield run


@pytest.fixture(scope="session")
def whole(models: Path) -> LocalDecoder:
    """Decodes other@1, which has every head."""
    return LocalDecoder(open_index(models / "other" / "1"))


@pytest.fixture(scope="session")
def measured_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated: demo@1 was built for no target, demo@2 for P@1 0.95."""
    folder = tmp_path_factory.mktemp("measured")
    write_model(folder, "demo", 1, calibration=MEASURED)
    target = {"target_precision": {"p1": 0.95}}
    write_model(folder, "demo", 2, calibration=MEASURED, config=target)
    return folder


@pytest.fixture(scope="session")
def measured(loop: Loop, measured_models: Path) -> Iterator[Running]:
    with running(loop, config_for(measured_models)) as run:
        yield run


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="session")
def ca() -> Pair:
    return authority()


@pytest.fixture
def serve(loop: Loop, models: Path) -> Serve:
    """Start a server by its options, with a gate before each computation if one is given."""

    def start(gate: Gate | None = None, **options: Any) -> AbstractContextManager[Running]:
        config = config_for(models, **options)
        return running(loop, config, gated(config, gate) if gate else None)

    return start


@pytest.fixture
def tight(serve: Serve, gate: Gate) -> Iterator[Running]:
    """One thread, two requests in flight, a gate before each computation."""
    with serve(gate, max_in_flight=2, drain_s=WAIT_S) as run:
        yield run
        gate.open()
