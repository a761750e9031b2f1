from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def cluster() -> Iterator[str]:
    """The address of a cluster of three CPUs, which this process is connected to."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        object_store_memory=200 << 20,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
