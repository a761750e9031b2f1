from collections.abc import Callable

import pytest

from logitsieve.api.errors import Unavailable
from logitsieve.client import AdminClient, AsyncAdminClient, ModelInfo
from tests.refusals import refused


@pytest.mark.parametrize("drain_s", [-1.0, 3601.0, float("nan")])
def test_a_time_to_drain_has_its_range(drain_s: float) -> None:
    with AdminClient("127.0.0.1:1") as client, refused("drain_s"):
        client.unload("demo", 1, drain_s)


async def test_without_a_server_every_method_says_so() -> None:
    with AdminClient("127.0.0.1:1", timeout_s=60) as client:
        calls: list[Callable[[], ModelInfo]] = [
            lambda: client.load("demo", 1),
            lambda: client.unload("demo", 1),
            lambda: client.set_alias("demo", "stable", None),
        ]
        for call in calls:
            with pytest.raises(Unavailable, match="nothing answers at 127"):
                call()
    async with AsyncAdminClient("127.0.0.1:1", timeout_s=60) as other:
        for awaited in (other.load("a", 1), other.unload("a", 1), other.set_alias("a", "b", 1)):
            with pytest.raises(Unavailable, match="nothing answers at 127"):
                await awaited
