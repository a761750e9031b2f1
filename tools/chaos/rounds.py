"""Rounds: a server, honest callers, troubles that come and go, limits, and a signal at the end."""

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Protocol

import numpy as np

from logitsieve.llamacpp import GgufModel
from tests.client.test_llamacpp import write_gguf_index
from tests.llamacpp.small_model import CHAT, write_model
from tests.server.materials import write_api_keys
from tools.chaos.completions import Completions
from tools.chaos.hostile import OF_GRPC, OF_HTTP, attack
from tools.chaos.process import Process, Stopwatch
from tools.chaos.service import ADMIN_KEY, KEY, Ask, Ports, Service, write_models
from tools.chaos.tally import Tally

TROUBLE_S, QUIET_S, TROUBLES = 15.0, 2.0, 4  # a trouble is longer than the most silence
CALLERS = 2  # of each kind
DRAIN_S, LAST_S, SLACK_S = 4.0, 3.0, 2.0  # 2 s for a machine that is busy with all this
# Limits, of docs/security.md.
MOST_SILENCE_S, MOST_SILENCE_AFTER_S = 10.0, 5.0
REQUEST_MB, STREAMS, MOST_MORE_MB = 128, 8, 300  # requests; beyond these streams and libraries
MOST_DESCRIPTORS = 1000


@dataclass(frozen=True)
class Options:
    folder: Path
    python: Path  # of the servers
    gguf: Path | None


class Target(Protocol):
    def callers(self) -> dict[str, Callable[[], Iterator[Ask]]]: ...

    def probe(self, timeout_s: float) -> None: ...


class Watch:
    """The longest time without an answer to a probe, memory and descriptors."""

    def __init__(self, process: Process, target: Target, tally: Tally, about: str) -> None:
        self._process, self._target, self._tally, self._about = process, target, tally, about
        self.where, self.last_refusal, self._over = "in quiet", "", Event()
        self._base_mb = process.memory_mb()
        self._threads = [Thread(target=each) for each in (self._probe, self._measure)]

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _probe(self) -> None:
        what, last = f"{self._about}: seconds of silence", Stopwatch(self._process)
        while not self._over.wait(0.1):
            where = self.where
            answered = self._answered()
            quiet = where == "in quiet" == self.where
            most = MOST_SILENCE_AFTER_S if quiet else MOST_SILENCE_S
            self._tally.measure(what, last.seconds(most), most, where, self.last_refusal)
            self._tally.measure(f"{what}, others' included", last.whole(), inf, where)
            if answered:
                last = Stopwatch(self._process)

    def _answered(self) -> bool:
        try:
            self._target.probe(MOST_SILENCE_S)
        except Exception as error:  # refused or cut off: the silence goes on
            self.last_refusal = repr(error)
            return False
        return True

    def _measure(self) -> None:
        name = self._about
        while not self._over.wait(0.2):
            more = self._process.memory_mb() - self._base_mb
            most = REQUEST_MB + MOST_MORE_MB
            self._tally.measure(f"{name}: MiB more than at the start", more, most, self.where)
            found = self._process.descriptors()
            self._tally.measure(f"{name}: descriptors", found, MOST_DESCRIPTORS, self.where)
            if self._process.ended is not None:
                self._tally.fault(f"{name}: ended with {self._process.ended} {self.where}")
                return


def call_on(target: Target, seed: int, over: Event, tally: Tally) -> list[Thread]:
    """Start honest callers; a caller that fails by itself is a fault."""

    def work(caller: str, opened: Callable[[], Iterator[Ask]], number: int) -> None:
        rng = np.random.default_rng((seed, number))
        try:
            with closing(opened()) as asking:  # type: ignore[type-var]
                ask = next(asking)
                while not over.is_set():
                    ask(rng)
        except Exception as error:
            tally.fault(f"{caller}: failed", f"{type(error).__name__}: {error}")

    numbers, threads = count(), []
    for name, opened in target.callers().items():
        for _ in range(CALLERS):
            threads.append(Thread(target=work, args=(name, opened, next(numbers))))
    for thread in threads:
        thread.start()
    return threads


def run_round(
    process: Process,
    target: Target,
    troubles: dict[str, Callable[[float], None]],
    rng: np.random.Generator,
    tally: Tally,
    about: str,
    before_end: Callable[[], object] = lambda: None,
) -> None:
    over = Event()
    callers = call_on(target, int(rng.integers(1 << 30)), over, tally)
    try:
        with Watch(process, target, tally, about) as watch:
            sleep(QUIET_S)
            for name in rng.permutation(list(troubles))[:TROUBLES].tolist():
                watch.where = f"in {name}"
                troubles[name](monotonic() + TROUBLE_S)
                sleep(MOST_SILENCE_AFTER_S)
                watch.where = "in quiet"
                sleep(QUIET_S)
                if process.ended is not None:
                    break
        if process.ended is None:
            before_end()
            number = int(rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
            what, most = f"{about}: seconds to end", DRAIN_S + LAST_S + SLACK_S
            seconds = process.seconds_to_end(number, most + 1)
            tally.measure(what, seconds, most, f"after {signal.Signals(number).name}")
            if process.ended:
                tally.fault(f"{about}: ended with {process.ended}, not 0, after a signal")
    finally:
        over.set()
        process.kill()
        for thread in callers:
            thread.join()


def at_once(hostile: str, port: int, rng: np.random.Generator) -> Callable[[float], None]:
    """Two clients of a kind, with seeds of their own."""
    seeds = rng.integers(1 << 30, size=2).tolist()

    def trouble(until: float) -> None:
        for client in [attack(hostile, port, until, seed) for seed in seeds]:
            client.wait()

    return trouble


def pause(process: Process) -> Callable[[float], None]:
    def trouble(until: float) -> None:
        process.send(signal.SIGSTOP)
        sleep(1.0)
        process.send(signal.SIGCONT)

    return trouble


def service_round(options: Options, rng: np.random.Generator, tally: Tally) -> None:
    models = options.folder / "models"
    write_models(models)
    arguments: list[object] = ["serve", "--model-repository", models, "--drain-s", DRAIN_S]
    arguments += ["--port", 0, "--http-port", 0, "--admin-port", 0]
    arguments += ["--request-memory-mib", REQUEST_MB, "--max-streams", STREAMS]
    arguments += ["--threads", int(rng.integers(1, 3))]
    api_key = KEY if rng.integers(2) else None
    if api_key:
        file = write_api_keys(options.folder, f"read:{KEY}\nadmin:{ADMIN_KEY}\n")
        arguments += ["--api-key-file", file]
    process = Process(options.python, options.folder / "serve.log", *arguments)
    try:
        ports = Ports(
            process.port("gRPC at "), process.port("metrics at "), process.port("Admin at ")
        )
        service = Service(models, ports, api_key, tally)
        troubles = {name: at_once(name, ports.grpc, rng) for name in OF_GRPC}
        troubles |= {
            "swap": service.swap,
            "cut": lambda until: service.cut(),
            "pause": pause(process),
            "bodies": at_once("unfinished_bodies", ports.http, rng),
        }
        run_round(process, service, troubles, rng, tally, "serve")
    finally:
        process.kill()


def completions_round(options: Options, rng: np.random.Generator, tally: Tally) -> None:
    gguf, arguments = options.gguf, list[object]()
    if gguf is None:
        gguf = write_model(
            options.folder / "small.gguf", head="Q8_0", body="Q8_0", chat_template=CHAT
        )
        index = write_gguf_index(GgufModel(gguf), options.folder / "models" / "small" / "1")
        arguments = ["--index", index]
    sequences = int(rng.integers(3, 7))
    arguments += ["--parallel", sequences, "--ctx-size", 256, "--drain-s", DRAIN_S, "--port", 0]
    arguments += ["--threads", int(rng.integers(1, 3))]
    log = options.folder / "serve-gguf.log"
    process = Process(options.python, log, "serve-gguf", gguf, *arguments)
    try:
        port = process.port("at http")
        target = Completions(port, tally, rng, 16)
        troubles = {name: at_once(name, port, rng) for name in OF_HTTP}
        troubles["pause"] = pause(process)
        run_round(process, target, troubles, rng, tally, "serve-gguf", target.burden)
    finally:
        process.kill()


ROUNDS = {"service": service_round, "completions": completions_round}
