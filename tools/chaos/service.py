"""Callers of every interface of `logitsieve serve`; answers are compared with those in process.

What is proven is compared with float64, too.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import httpx2
import numpy as np
import tritonclient.grpc as triton

from logitsieve.api.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LogitsieveError,
    ModelNotFound,
    Overloaded,
    Unavailable,
)
from logitsieve.client import AdminClient, DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.synthetic import make_hidden, make_softmax, write_heads
from tools.chaos.tally import Tally

V, D, TIMEOUT_S = 3000, 24, 20.0
KEY, ADMIN_KEY = "chaos-reads-with-this", "chaos-administers-with-this"
REFUSALS = (Overloaded, Unavailable, DeadlineExceeded)
VICTIM = "victim"  # its files are cut
HEADS = ("full", "sketch", "screen")
Ask = Callable[[np.random.Generator], None]


def write_models(models: Path) -> None:
    for name, version in (("demo", 1), ("demo", 2), ("other", 1), (VICTIM, 1)):
        softmax = make_softmax(V, D, seed=10 * version + len(name))
        write_heads(models / name / str(version), softmax, "sketch", "screen")
    (models / "demo" / "aliases.json").write_text(json.dumps({"stable": 1}))


@dataclass
class Ports:
    grpc: int
    http: int
    admin: int


class Service:
    """The models of one run, and what is right of them."""

    def __init__(self, models: Path, ports: Ports, api_key: str | None, tally: Tally) -> None:
        self.models, self.ports, self.api_key, self.tally = models, ports, api_key, tally
        self.local = {
            (path.parent.name, path.name): LocalDecoder(open_index(path))
            for path in models.glob("*/[0-9]")
        }
        softmaxes = {key: local.index.softmax for key, local in self.local.items()}
        self.logits64 = {  # copies: a file of one is cut
            key: (softmax.weight.astype(np.float64), softmax.bias.astype(np.float64))
            for key, softmax in softmaxes.items()
        }

    def decoder(self) -> DecoderClient:
        return DecoderClient(
            f"127.0.0.1:{self.ports.grpc}", timeout_s=TIMEOUT_S, api_key=self.api_key
        )

    def callers(self) -> dict[str, Callable[[], Iterator[Ask]]]:
        """By name: gives a function that asks once, and closes after it."""
        return {
            "unary": self._unary,
            "stream": self._stream,
            "kserve": self._kserve,
            "console": self._console,
            "victim": self._victim,
            "impatient": self._impatient,
        }

    def _unary(self) -> Iterator[Ask]:
        with self.decoder() as decoder:
            yield lambda rng: self._compared("unary", decoder, rng)

    def _stream(self) -> Iterator[Ask]:
        with self.decoder() as decoder:

            def ask(rng: np.random.Generator) -> None:
                try:
                    with decoder.stream() as stream:
                        for _ in range(int(rng.integers(1, 20))):
                            self._compared("stream", stream, rng)
                except REFUSALS:
                    self.tally.count("stream", "refused")

            yield ask

    def _compared(self, caller: str, decoder: Any, rng: np.random.Generator) -> None:
        model = str(rng.choice(["demo:stable", "other"]))
        method, arguments, options = self._question(rng)
        options["head"] = str(rng.choice(HEADS))
        try:
            reply = getattr(decoder, method)(*arguments, model=model, **options)
        except REFUSALS:
            self.tally.count(caller, "refused")
            return
        except Exception as error:
            self.tally.count(caller, "lost", f"{method}: {type(error).__name__}: {error}")
            return
        key = (model.partition(":")[0], reply.answer.version)
        alone = getattr(self.local[key], method)(*arguments, **options)
        wrong = self._difference(reply, alone)
        if not wrong and method == "topk" and reply.answer.proven.all():
            wrong = self._untrue(key, arguments[0], reply.ids)
        self.tally.count(caller, "wrong" if wrong else "right", f"{method} {options} {wrong}")

    def _question(self, rng: np.random.Generator) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        rows = int(rng.choice([1, 2, 3, 5, 8, 40]))
        hidden_states = make_hidden(rows, D, seed=int(rng.integers(1 << 30)))
        method = str(rng.choice(["topk", "sample", "score", "beam_step"]))
        if method == "topk":
            return method, (hidden_states, int(rng.integers(1, 12))), {}
        if method == "sample":
            return (
                method,
                (hidden_states,),
                {"seeds": int(rng.integers(1 << 40)), "temperature": 0.9},
            )
        if method == "score":
            return method, (hidden_states, rng.integers(0, V, (rows, 2)).astype(np.int32)), {}
        hidden_states = np.repeat(hidden_states, 2, axis=0)
        return method, (hidden_states,), {"beams_in": 2, "beams_out": 3}

    def _difference(self, reply: Any, alone: Any) -> str:
        for name, got, right in zip(reply._fields, reply, alone, strict=True):
            if name != "answer" and not np.array_equal(got, right):
                return f"{name} are others than in process"
        return "" if np.array_equal(reply.answer.proven, alone.answer.proven) else "proven differs"

    def _untrue(self, key: tuple[str, str], hidden_states: np.ndarray, ids: np.ndarray) -> str:
        weight, bias = self.logits64[key]
        logits = hidden_states.astype(np.float64) @ weight.T + bias
        right = np.take_along_axis(logits, np.argsort(-logits, axis=1)[:, : ids.shape[1]], axis=1)
        gap = np.abs(np.take_along_axis(logits, ids, axis=1) - right).max()
        return "" if gap < 1e-9 else f"proven, and off by {gap:g} in float64"

    def _kserve(self) -> Iterator[Ask]:
        client = triton.InferenceServerClient(f"127.0.0.1:{self.ports.grpc}")
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else None
        names = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"}

        def ask(rng: np.random.Generator) -> None:
            hidden_states = make_hidden(int(rng.integers(1, 5)), D, seed=int(rng.integers(1 << 30)))
            rows = triton.InferInput("hidden_states", hidden_states.shape, "FP32")
            rows.set_data_from_numpy(hidden_states)
            k = triton.InferInput("k", [1], "INT32")
            k.set_data_from_numpy(np.array([4], np.int32))
            try:
                result = client.infer(
                    "other",
                    [rows, k],
                    parameters={"head": "sketch"},
                    headers=headers,
                    client_timeout=TIMEOUT_S,
                )
            except triton.InferenceServerException as error:
                refused = any(name in str(error.status()) for name in names)
                self.tally.count("kserve", "refused" if refused else "lost", str(error))
                return
            right = self.local["other", "1"].topk(hidden_states, 4, head="sketch").ids
            same = np.array_equal(result.as_numpy("ids"), right)
            self.tally.count("kserve", "right" if same else "wrong", "ids are others")

        yield ask
        client.close()

    def _console(self) -> Iterator[Ask]:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"} if self.api_key else {}
        base = f"http://127.0.0.1:{self.ports.http}"
        with httpx2.Client(base_url=base, headers=headers, timeout=TIMEOUT_S) as client:

            def ask(rng: np.random.Generator) -> None:
                hidden_states = make_hidden(1, D, seed=int(rng.integers(1 << 30)))
                row = [float(value) for value in hidden_states[0]]
                body = {"model": "other", "row": row, "k": 3, "head": "sketch"}
                try:
                    reply = client.post("/api/top", json=body)
                except httpx2.TransportError:
                    self.tally.count("console", "refused")
                    return
                if reply.status_code != 200:
                    outcome = "refused" if reply.status_code in (429, 503, 504) else "lost"
                    self.tally.count("console", outcome, reply.text)
                    return
                ids = [word["id"] for word in reply.json()["words"]]
                right = (
                    self.local["other", "1"].topk(hidden_states, 3, head="sketch").ids[0].tolist()
                )
                self.tally.count("console", "right" if ids == right else "wrong", f"{ids}")

            yield ask

    def _victim(self) -> Iterator[Ask]:
        """A model whose files are cut: any error, but no wrong answer."""
        weight, bias = self.logits64[VICTIM, "1"]
        with self.decoder() as decoder:

            def ask(rng: np.random.Generator) -> None:
                hidden_states = make_hidden(2, D, seed=int(rng.integers(1 << 30)))
                try:
                    ids = decoder.topk(hidden_states, 1, model=VICTIM, exact=True).ids
                except LogitsieveError:
                    self.tally.count(VICTIM, "refused")
                    return
                best = (hidden_states.astype(np.float64) @ weight.T + bias).argmax(axis=1)
                same = np.array_equal(ids[:, 0], best)
                self.tally.count(VICTIM, "right" if same else "wrong", "not the best ids")

            yield ask

    def _impatient(self) -> Iterator[Ask]:
        """Calls that are given up after milliseconds."""
        with grpc.insecure_channel(f"127.0.0.1:{self.ports.grpc}") as channel:
            call = channel.unary_unary("/logitsieve.v1.Decoder/TopK")

            def ask(rng: np.random.Generator) -> None:
                with suppress(grpc.RpcError):
                    call(bytes(rng.bytes(50)), timeout=float(rng.uniform(1e-4, 5e-3)))
                self.tally.count("impatient", "refused")

            yield ask

    def swap(self, until: float) -> None:
        """Point `stable` at the other version, load and unload, until a time."""
        api_key = ADMIN_KEY if self.api_key else None
        version = 1
        with AdminClient(f"127.0.0.1:{self.ports.admin}", api_key=api_key) as admin:
            while monotonic() < until:
                version = 3 - version
                try:
                    admin.load("demo", version, alias="stable")
                    admin.unload("demo", 3 - version, drain_s=TIMEOUT_S)
                except (ModelNotFound, InvalidRequest) as error:
                    self.tally.fault(f"swap: {error}")
                except LogitsieveError:
                    self.tally.count("swap", "refused")
                else:
                    self.tally.count("swap", "right")

    def cut(self) -> None:
        """Truncate the largest file of a version in place, as an interrupted copy does."""
        files = [path for path in (self.models / VICTIM / "1").rglob("*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        with largest.open("r+b") as file:
            file.truncate(largest.stat().st_size // 3)

    def probe(self, timeout_s: float) -> None:
        """Ask the smallest question on a connection of its own; raises unless it is answered."""
        with DecoderClient(
            f"127.0.0.1:{self.ports.grpc}", timeout_s=timeout_s, api_key=self.api_key
        ) as decoder:
            decoder.topk(make_hidden(1, D), 1, model="other", head="full")
