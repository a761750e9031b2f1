from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc as triton

from tests.server.running import Running


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as client:
        yield client
