"""A hundred hot swaps under load: every answer is wholly of one version, and no call fails."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.materials import ids_by_digest
from tests.server.messages import TARGET, RawStream
from tests.server.running import WAIT_S, Loop, Running, administered, config_of, write_model
from tests.synthetic import make_hidden

SWAPS = 100
K = 5


class Asker:
    """Asks until it is told to stop; without retries, so that a call that fails is an error."""

    def __init__(self, run: Running, models: Path, rows: int, stream: bool) -> None:
        hidden = make_hidden(rows)
        self._expected = ids_by_digest(models, hidden, K)
        self._request = pb.TopKRequest(target=TARGET, hidden=put(pb.Tensor(), hidden), k=K)
        self._run, self._stream = run, stream
        self.first = threading.Event()
        self.versions: set[str] = set()

    def ask_until(self, stopping: threading.Event) -> int:
        asked = 0
        stream = RawStream(self._run.channel) if self._stream else None
        while not stopping.is_set():
            self._check(self._once() if stream is None else self._on(stream))
            asked += 1
            self.first.set()
        if stream is not None:
            stream.half_close()
            assert stream.rest() == []
        return asked

    def _once(self) -> pb.TopKResponse:
        reply = self._run.raw("Decoder/TopK", self._request.SerializeToString())
        return pb.TopKResponse.FromString(reply)

    def _on(self, stream: RawStream) -> pb.TopKResponse:
        reply = stream.ask(pb.DecodeRequest(id=1, top_k=self._request))
        assert not reply.error.code, reply.error
        return reply.top_k

    def _check(self, reply: pb.TopKResponse) -> None:
        assert reply.ids.data == self._expected[reply.answer.digest]
        self.versions.add(reply.answer.version)


@pytest.mark.system
def test_a_hundred_swaps_under_load(loop: Loop, tmp_path: Path, kernel_cache: Path) -> None:
    write_model(tmp_path, version=1)
    write_model(tmp_path, version=2)
    config = config_of(tmp_path, kernel_cache)
    stopping = threading.Event()
    with administered(loop, config) as served, ThreadPoolExecutor(4) as pool:
        askers = [
            Asker(served.run, tmp_path, rows, stream)
            for rows, stream in ((1, False), (64, False), (1, True), (64, True))
        ]
        asked = [pool.submit(asker.ask_until, stopping) for asker in askers]
        try:
            assert all(asker.first.wait(WAIT_S) for asker in askers)
            for swap in range(SWAPS):
                new, old = 1 + swap % 2, 2 - swap % 2
                served.admin.load("demo", new, alias="stable")
                assert served.admin.unload("demo", old, drain_s=WAIT_S).state == "unspecified"
        finally:
            stopping.set()
        assert all(one.result(WAIT_S) >= 1 for one in asked)
    assert set().union(*(asker.versions for asker in askers)) == {"1", "2"}
