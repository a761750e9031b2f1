"""One Ray for all tests that need it: a node of this machine, without a dashboard."""

import os
from collections.abc import Iterator

import pytest

STORE_BYTES = 100_000_000
INGRESS = "logitsieve_ingress"  # the resource of the node that may host one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let warnings of Ray's own code be: they are errors in tests otherwise."""
    for item in items:
        if item.get_closest_marker("ray") is not None:
            for kind in ("Deprecation", "Resource", "Future"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}Warning"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """This process is connected to it."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=4,
        resources={INGRESS: 1},
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
