"""The wall clock jumps by days under a running server: nothing that waits, expires or is counted
goes by it.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from time import sleep
from typing import NamedTuple

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from logitsieve.api.errors import Unauthenticated
from logitsieve.client import DecoderClient, Tls
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.materials import Pair, authority, signed_by, write_api_keys
from tests.server.messages import RawStream, asked
from tests.server.running import WAIT_S, Started, started, write_model
from tests.server.test_tls import presented_at
from tests.synthetic import make_hidden

# Debian's package `faketime`. The one for threads; what is monotonic stays as it is.
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)

pytestmark = [pytest.mark.system, pytest.mark.skipif(LIBRARY is None, reason="no libfaketime here")]

OLD, NEW = "a-token-of-readers", "another-one-of-readers"
HIDDEN = make_hidden(4)


class Clock:
    """What a process under libfaketime takes for the time: its own, and an offset in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump("+0")
        self.environment = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def jump(self, offset: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(offset + "\n")
        new.replace(self._file)


class Scene(NamedTuple):
    """A server with all that could look at a clock."""

    server: Started
    clock: Clock
    folder: Path
    ca: Pair
    trusted: Path

    def client(self, api_key: str = OLD) -> DecoderClient:
        tls = Tls(ca=self.trusted)
        return DecoderClient(self.server.address, timeout_s=WAIT_S, tls=tls, api_key=api_key)

    def time_of(self, event: str) -> datetime:
        """Of the next line in the log about it."""
        assert self.server.process.stderr is not None
        said = map(json.loads, self.server.process.stderr)
        return datetime.fromisoformat(next(line["time"] for line in said if line["event"] == event))

    def time_of_a_failure(self) -> datetime:
        with self.client("no-token-of-this-server") as stranger, pytest.raises(Unauthenticated):
            stranger.topk(HIDDEN, 3)
        return self.time_of("request_failed")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    write_model(tmp_path / "models")
    ca = authority()
    cert, key = signed_by(ca).write(tmp_path)
    api_keys = write_api_keys(tmp_path, f"read:{OLD}\n")
    clock = Clock(tmp_path / "clock")
    with started(
        tmp_path / "models",
        environment=clock.environment,
        tls_cert=cert,
        tls_key=key,
        api_key_file=api_keys,
        log_format="json",
        shadow_share=1.0,
        shadow_cpu=1.0,
    ) as server:
        yield Scene(server, clock, tmp_path, ca, ca.write(tmp_path, "ca")[0])


@contextmanager
def asking(scene: Scene) -> Iterator[Callable[[], pb.DecodeResponse]]:
    """Asks on a stream that stays open, with a deadline of its own."""
    credentials = grpc.ssl_channel_credentials(scene.trusted.read_bytes())
    with grpc.secure_channel(scene.server.address, credentials) as channel:
        stream = RawStream(channel, headers=(("authorization", f"Bearer {OLD}"),))
        yield lambda: stream.ask(asked("TopK", 1, timeout_ms=int(1000 * WAIT_S)))
        stream.half_close()


def total(scene: Scene, name: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(scene.server.page())
        for sample in family.samples
        if sample.name == name
    )


def test_a_jump_and_a_jump_back(scene: Scene) -> None:
    before = scene.time_of_a_failure()
    with scene.client() as client, asking(scene) as ask:
        expected = client.topk(HIDDEN, 3).ids.tolist()
        assert ask().top_k.ids.rows == 4
        for days in (30, -30):
            scene.clock.jump(f"{days:+}d")
            moved = scene.time_of_a_failure() - before
            assert abs(moved - timedelta(days=days)) < timedelta(hours=1)
            assert ask().top_k.ids.rows == 4
            assert client.topk(HIDDEN, 3).ids.tolist() == expected
    assert_secrets_are_renewed(scene)
    assert_counts_go_on(scene)
    scene.server.process.send_signal(signal.SIGTERM)
    # Its exit is not waited for: the library's threads wait by the kernel's clock until a time that
    # they took from the other one.
    stopping = scene.time_of("stopping")
    assert scene.time_of("stopped") - stopping < timedelta(seconds=WAIT_S)


def assert_secrets_are_renewed(scene: Scene) -> None:
    new = signed_by(scene.ca)
    new.write(scene.folder)
    assert presented_at(scene.server.port) == new.serial
    (scene.folder / "api_keys").write_text(f"read:{NEW}\n")
    with scene.client(NEW) as client:
        for _ in range(100):  # the file is read twice a second
            with suppress(Unauthenticated):
                assert client.topk(HIDDEN, 3).ids.shape == (4, 3)
                break
            sleep(0.1)
    with scene.client(OLD) as client, pytest.raises(Unauthenticated):
        client.topk(HIDDEN, 3)


def assert_counts_go_on(scene: Scene) -> None:
    """Durations are short and not negative, and rows are judged as before."""
    for phase in ("request_duration", "queue", "compute"):
        assert 0 < total(scene, f"logitsieve_{phase}_seconds_sum") < WAIT_S
    judged = total(scene, "logitsieve_shadow_rows_total")
    with scene.client(NEW) as client:
        client.topk(HIDDEN, 3)
    while total(scene, "logitsieve_shadow_rows_total") < judged + len(HIDDEN):
        pass
