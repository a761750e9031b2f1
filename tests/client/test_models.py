from types import SimpleNamespace
from typing import Any

from logitsieve.client import DecoderClient
from logitsieve.client.models import Limits, PointInfo, model_info
from logitsieve.v1 import decoder_pb2 as pb


def message(version: int) -> pb.Model:
    head = pb.Head(name="screen", knobs={"probes": 3.0})
    return pb.Model(
        name="lm",
        version=str(version),
        state=pb.STATE_AVAILABLE,
        aliases=["stable"],
        vocabulary=300,
        dim=24,
        limits=pb.Limits(max_rows=5, max_k=4, max_samples=3, max_request_bytes=2),
        heads=["exact", "screen"],
        points=[pb.OperatingPoint(head=head, rows=8, us_per_row=1.5, precision_at={1: 0.99})],
    )


def test_a_message_as_a_plain_value() -> None:
    model = model_info(message(2))
    assert (model.name, model.version, model.state) == ("lm", "2", "available")
    assert (model.vocab_size, model.dim, model.aliases) == (300, 24, ("stable",))
    assert model.limits == Limits(
        max_rows=5, max_k=4, max_samples=3, max_request_bytes=2, max_constraint_ids=0
    )
    [point] = model.points
    assert point == PointInfo(
        head="screen",
        knobs={"probes": 3.0},
        rows=8,
        us_per_row=1.5,
        precision_at={1: 0.99},
        mass_kept=0.0,
        proven=False,
    )


def test_pages_are_asked_for_until_the_last() -> None:
    pages = {
        "": pb.ListModelsResponse(models=[message(1)], next_page_token="lm@1"),
        "lm@1": pb.ListModelsResponse(models=[message(2)]),
    }
    stub: Any = SimpleNamespace(List=lambda request, **told: pages[request.page_token])
    with DecoderClient("localhost:1") as client:
        client._models = stub
        assert [model.version for model in client.models()] == ["1", "2"]
