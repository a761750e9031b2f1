import pytest

from logitsieve.api.errors import Unavailable
from logitsieve.client import AdminClient, AsyncAdminClient

SAID = "nothing answers at 127"
CALLS = {"load": ("demo", 1), "unload": ("demo", 1), "set_alias": ("demo", "stable", None)}


@pytest.mark.parametrize("name", CALLS)
async def test_without_a_server_every_method_says_so(name: str) -> None:
    silent = "127.0.0.1:1"
    with AdminClient(silent, timeout_s=60) as client, pytest.raises(Unavailable, match=SAID):
        getattr(client, name)(*CALLS[name])
    async with AsyncAdminClient(silent, timeout_s=60) as other:
        with pytest.raises(Unavailable, match=SAID):
            await getattr(other, name)(*CALLS[name])
