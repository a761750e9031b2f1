"""The tool itself: it notices answers that change, limits that are passed, and a process's end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from tools.chaos.completions import Completions
from tools.chaos.process import Process, Taken
from tools.chaos.tally import Tally

ASKED = 4


class Forgetful(BaseHTTPRequestHandler):
    """Gives the same text to every request, and others after some of them."""

    numbers = count()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        text = "right" if next(self.numbers) < ASKED + 1 else "wrong"
        reply = json.dumps({"choices": [{"text": text}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Forgetful) as server:
        Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


def test_an_answer_that_changes_is_wrong(port: int) -> None:
    tally = Tally()
    target = Completions(port, tally, np.random.default_rng(0), ASKED)
    asking = target.callers()["whole"]()
    ask = next(asking)
    for _ in range(3):
        ask(np.random.default_rng(1))
    asking.close()  # type: ignore[attr-defined]
    assert dict(tally.answers["whole"]) == {"right": 1, "wrong": 2}
    assert tally.faults == {"whole: wrong": 2}


def test_what_passes_a_limit_is_a_fault() -> None:
    tally = Tally()
    for value in (3.0, 5.0, 4.0):
        tally.measure("seconds", value, 4.5, "in a flood")
    assert tally.worst == {"seconds": 5.0}
    assert tally.faults == {"seconds: more than 4.5 in a flood": 1}


@pytest.mark.system
def test_a_process_is_watched_with_its_children(tmp_path: Path) -> None:
    process = Process(
        Path(sys.executable), tmp_path / "log", "serve", "--model-repository", tmp_path / "none"
    )
    try:
        with pytest.raises(RuntimeError, match="gRPC at"):
            process.port("gRPC at ")
        assert process.ended == 2
        assert process.seconds_to_end(signal.SIGTERM, 5) < 5
    finally:
        process.kill()


def test_time_that_others_take_while_a_run_waits_for_it_is_not_counted() -> None:
    began = Taken(waited_s=5.0, by_others_s=7.0)
    assert Taken(15.0, 11.0).since(began) == 4.0  # it waited for itself, too
    assert Taken(6.0, 11.0).since(began) == 1.0  # it had nothing to do
    assert Taken(4.0, 11.0).since(began) == 0.0  # its threads that waited have ended


BUSY = """
import os, time
if not os.fork():
    os.setsid()
    while time.process_time() < 0.3:
        pass
"""


@pytest.mark.system
def test_a_process_of_another_session_takes_time_from_a_run(tmp_path: Path) -> None:
    process = Process(Path(sys.executable), tmp_path / "log", "--help")
    before = process.taken()
    subprocess.run([sys.executable, "-c", BUSY], check=True, capture_output=True)  # to its end
    after = process.taken()
    process.kill()
    assert after.by_others_s - before.by_others_s > 0.25 / (os.cpu_count() or 1)
