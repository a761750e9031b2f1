import pytest


@pytest.fixture
def address(cluster: None) -> str:
    """The address of the cluster of four CPUs that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)
