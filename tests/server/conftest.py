import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.materials import Gate, gated
from tests.server.running import (
    MEASURED,
    WAIT_S,
    Loop,
    Running,
    config_for,
    running,
    write_model,
    write_whole,
)


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """demo@1 (stable), demo@2 (canary), other@1 with more heads; demo@3 is broken."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "demo", 1)
    write_model(folder, "demo", 2)
    write_whole(folder, "other")
    (folder / "demo" / "3").mkdir()
    (folder / "demo" / "aliases.json").write_text(json.dumps({"stable": 1, "canary": 2}))
    return folder


@pytest.fixture(scope="session")
def server(loop: Loop, models: Path, kernel_cache: Path) -> Iterator[Running]:
    limits = {"max_rows": 256, "max_k": 128, "max_samples": 64, "max_constraint_ids": 1000}
    config = config_for(models, kernel_cache=kernel_cache, **limits)
    with running(loop, config) as run:
        yield run


@pytest.fixture(scope="session")
def measured_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated: demo@1 was built for no target, demo@2 for P@1 0.95."""
    folder = tmp_path_factory.mktemp("measured")
    write_model(folder, "demo", 1, calibration=MEASURED)
    target = {"target_precision": {"p1": 0.95}}
    write_model(folder, "demo", 2, calibration=MEASURED, config=target)
    return folder


@pytest.fixture(scope="session")
def measured(loop: Loop, measured_models: Path, kernel_cache: Path) -> Iterator[Running]:
    with running(loop, config_for(measured_models, kernel_cache=kernel_cache)) as run:
        yield run


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def tight(loop: Loop, models: Path, kernel_cache: Path, gate: Gate) -> Iterator[Running]:
    """One thread, two requests in flight, a gate before each computation."""
    config = config_for(models, max_in_flight=2, kernel_cache=kernel_cache, drain_s=WAIT_S)
    with running(loop, config, gated(config, gate)) as run:
        yield run
        gate.open()
