"""A hundred hot swaps under load: every answer is wholly of one version, and no call fails."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.materials import ids_by_digest
from tests.server.messages import SPEC, RawStream
from tests.server.running import WAIT_S, Loop, Running, administered, config_for, write_model
from tests.synthetic import make_hidden

SWAPS = 100
K = 5


def ask_until(
    stopping: Event, begun: Event, run: Running, models: Path, rows: int, stream: bool
) -> set[str]:
    """The versions that answered; without retries, so that a call that fails is an error."""
    hidden_states, versions = make_hidden(rows), set[str]()
    expected = ids_by_digest(models, hidden_states, K)
    request = pb.TopKRequest(model_spec=SPEC, hidden_states=put(pb.Tensor(), hidden_states), k=K)
    on = RawStream(run.channel)
    while not stopping.is_set():
        if stream:
            found = on.ask(pb.DecodeRequest(id=1, top_k=request))
            assert not found.error.code, found.error
            reply = found.top_k
        else:
            message = run.raw("Decoder/TopK", request.SerializeToString())
            reply = pb.TopKResponse.FromString(message)
        assert reply.ids.data == expected[reply.answer.digest]
        versions.add(reply.answer.version)
        begun.set()
    on.half_close()
    assert on.rest() == []
    return versions


@pytest.mark.system
def test_a_hundred_swaps_under_load(loop: Loop, tmp_path: Path) -> None:
    write_model(tmp_path, version=1)
    write_model(tmp_path, version=2)
    stopping, kinds = Event(), [(1, False), (64, False), (1, True), (64, True)]
    with administered(loop, config_for(tmp_path)) as served, ThreadPoolExecutor(4) as pool:
        begun = [Event() for _ in kinds]
        asked = [
            pool.submit(ask_until, stopping, event, served.run, tmp_path, *kind)
            for event, kind in zip(begun, kinds, strict=True)
        ]
        try:
            assert all(event.wait(WAIT_S) for event in begun)
            for swap in range(SWAPS):
                new, old = 1 + swap % 2, 2 - swap % 2
                served.admin.load("demo", new, alias="stable")
                assert served.admin.unload("demo", old, drain_s=WAIT_S).state == "unspecified"
        finally:
            stopping.set()
        assert set().union(*(one.result(WAIT_S) for one in asked)) == {"1", "2"}
