import grpc
import pytest

from logitsieve.api.errors import ModelNotFound
from logitsieve.v1 import decoder_pb2 as pb
from tests.refusals import refused
from tests.server.running import Running


def test_every_version_is_listed(server: Running) -> None:
    one, two, broken, other = server.client.models()
    assert [(m.name, m.version, m.state) for m in (one, two, broken, other)] == [
        ("demo", "1", "available"),
        ("demo", "2", "available"),
        ("demo", "3", "failed"),
        ("other", "1", "available"),
    ]
    assert (one.aliases, two.aliases, broken.aliases) == (("stable",), ("canary",), ())
    assert "manifest.json" in broken.error
    assert (one.vocab_size, one.dim, one.heads) == (300, 24, ("full", "screen"))
    assert one.limits.max_rows == 256
    assert one.limits.max_k == 128
    assert (one.limits.max_samples, one.limits.max_constraint_ids) == (64, 1000)
    row = 24 * 4 + 128 * 4 + 32
    assert one.limits.max_request_bytes == 256 * row + 8 * 1000 + 65536
    assert len(one.digest) == 64


def test_get(server: Running) -> None:
    for name, version in {"demo": "1", "demo:canary": "2", "demo@2": "2", "demo@3": "3"}.items():
        assert server.client.model(name).version == version
    with pytest.raises(ModelNotFound, match="demo, other"):
        server.client.model("nothing")
    with refused("model"):
        server.client.model("")


def page(server: Running, **fields: object) -> pb.ListModelsResponse:
    request = pb.ListModelsRequest(**fields)  # type: ignore[arg-type]
    return pb.ListModelsResponse.FromString(server.raw("Models/List", request.SerializeToString()))


def test_pages(server: Running) -> None:
    first = page(server, page_size=3)
    assert len(first.models) == 3
    second = page(server, page_size=3, page_token=first.next_page_token)
    assert [model.name for model in second.models] == ["other"]
    assert second.next_page_token == ""
    assert len(page(server, page_size=(1 << 32) - 1).models) == 4
    with pytest.raises(grpc.RpcError, match="page_token") as caught:
        page(server, page_token="made up")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
