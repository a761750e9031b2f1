"""Callers of `logitsieve serve-gguf`; answers are compared with those that a request has alone."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from time import sleep
from typing import Any

import httpx2
import numpy as np

from tests.llamacpp.small_model import WORDS
from tools.chaos.tally import Tally

TIMEOUT_S = 60.0
REFUSALS = (408, 413, 429, 502, 503, 504)
ALSO = {"tokenizing": (400,)}  # for a text that is too long
Ask = Callable[[np.random.Generator], None]


def questions(rng: np.random.Generator, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies with mixed seeds, lengths and options."""
    made: list[tuple[str, dict[str, Any]]] = []
    for _ in range(count):
        text = " ".join(rng.choice(WORDS, int(rng.integers(2, 90))))
        body: dict[str, Any] = {"max_tokens": int(rng.integers(1, 30)), "temperature": 0}
        if rng.integers(2):
            drawn = {"temperature": 0.8, "top_p": 0.95, "seed": int(rng.integers(1 << 40))}
            body.update(drawn)
        if rng.integers(3) == 0:
            body |= {"logprobs": int(rng.integers(0, 4)), "echo": bool(rng.integers(2))}
        made.append(("/v1/completions", body | {"prompt": text}))
    return made


class Completions:
    """A pool of requests with the choices of each, asked alone before the others come."""

    def __init__(self, port: int, tally: Tally, rng: np.random.Generator, count: int) -> None:
        self.port, self.tally = port, tally
        self.pool = questions(rng, count)
        self.counts = dict[str, int]()  # of tokens, by texts
        with self._client() as client:
            self.alone = [self._choices(client.post(path, json=body)) for path, body in self.pool]

    def _client(self) -> httpx2.Client:
        return httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT_S)

    def _choices(self, reply: httpx2.Response) -> Any:
        reply.raise_for_status()
        return reply.json()["choices"]

    def callers(self) -> dict[str, Callable[[], Iterator[Ask]]]:
        return {
            "whole": self._whole,
            "streamed": self._streamed,
            "leaving": self._leaving,
            "tokenizing": self._tokenizing,
        }

    def _whole(self) -> Iterator[Ask]:
        with self._client() as client:

            def ask(rng: np.random.Generator) -> None:
                place = int(rng.integers(len(self.pool)))
                path, body = self.pool[place]
                reply = self._sent("whole", lambda: client.post(path, json=body))
                if reply is not None:
                    self._judge("whole", place, reply.json()["choices"])

            yield ask

    def _sent(self, caller: str, send: Callable[[], httpx2.Response]) -> httpx2.Response | None:
        try:
            reply = send()
        except httpx2.TransportError:
            self.tally.count(caller, "refused")
            sleep(0.05)
            return None
        if reply.status_code == 200:
            return reply
        self._unanswered(caller, reply)
        return None

    def _unanswered(self, caller: str, reply: httpx2.Response) -> None:
        outcome = "refused" if reply.status_code in ALSO.get(caller, ()) + REFUSALS else "lost"
        self.tally.count(caller, outcome, f"{reply.status_code}: {reply.text}")

    def _judge(self, caller: str, place: int, choices: Any) -> None:
        same = choices == self.alone[place]
        got, right = (json.dumps(each)[:90] for each in (choices, self.alone[place]))
        self.tally.count(caller, "right" if same else "wrong", f"{got} for {right}")

    def _streamed(self) -> Iterator[Ask]:
        with self._client() as client:

            def ask(rng: np.random.Generator) -> None:
                place = int(rng.integers(len(self.pool)))
                path, body = self.pool[place]
                text, ended = "", False
                try:
                    with client.stream("POST", path, json=body | {"stream": True}) as reply:
                        if reply.status_code != 200:
                            reply.read()
                            self._unanswered("streamed", reply)
                            return
                        for line in reply.iter_lines():
                            if line == "data: [DONE]":
                                ended = True
                            elif line.startswith("data: "):
                                for choice in json.loads(line[6:]).get("choices", ()):
                                    text += choice["text"]
                            if rng.integers(40) == 0:
                                sleep(0.2)  # a slow reader
                except httpx2.TransportError:
                    ended = False
                if not ended:
                    self.tally.count("streamed", "refused")
                    sleep(0.05)
                    return
                right = self.alone[place][0]["text"]
                outcome = "right" if text == right else "wrong"
                self.tally.count("streamed", outcome, f"{text[:90]!r} for {right[:90]!r}")

            yield ask

    def _leaving(self) -> Iterator[Ask]:
        """Clients that go after the first tokens."""

        def ask(rng: np.random.Generator) -> None:
            path, body = self.pool[int(rng.integers(len(self.pool)))]
            try:
                with (
                    self._client() as client,
                    client.stream("POST", path, json=body | {"stream": True}) as reply,
                ):
                    next(reply.iter_lines(), None)
            except httpx2.TransportError:
                pass
            self.tally.count("leaving", "refused")

        yield ask

    def _tokenizing(self) -> Iterator[Ask]:
        """Long texts, and runs of one letter that some tokenizers recurse over."""
        with self._client() as client:

            def ask(rng: np.random.Generator) -> None:
                letter = str(rng.choice(list("a. 1\n漢")))
                text = letter * int(rng.choice([30_000, 300_000, 3_000_000]))
                path = str(rng.choice(["/tokenize", "/v1/completions"]))
                reply = self._sent("tokenizing", lambda: client.post(path, json={"prompt": text}))
                if reply is not None:
                    count = reply.json()["count"]
                    first = self.counts.setdefault(text, count)
                    outcome = "right" if count == first else "wrong"
                    self.tally.count("tokenizing", outcome, f"{count} tokens, before {first}")
                sleep(0.5)

            yield ask

    def burden(self) -> None:
        """Have six long texts tokenized, and do not wait for it."""
        body = json.dumps({"prompt": "the of and " * 1_200_000}).encode()
        for _ in range(6):
            Thread(target=self._sent_alone, args=(body,), daemon=True).start()
        sleep(1.0)

    def _sent_alone(self, body: bytes) -> None:
        with self._client() as client, suppress(httpx2.TransportError):
            client.post("/tokenize", content=body, headers={"Content-Type": "application/json"})

    def probe(self, timeout_s: float) -> None:
        base = f"http://127.0.0.1:{self.port}"
        body = {"prompt": "the of", "max_tokens": 1, "temperature": 0}
        httpx2.post(f"{base}/v1/completions", json=body, timeout=timeout_s).raise_for_status()
