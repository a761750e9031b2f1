"""Clients of `serve-gguf`, first tokens of `generate`: `python -m benchmarks.llamacpp.clients`.

On each engine a server with the engine's own output layer and one with an index, at the default
grade, answer the same greedy requests of 1, 4 and 16 clients by turns, until the minutes are over.
Every text is compared with the one that the same server gave to a request alone. Then, as
`generate` without an index does, a process answers by the engine's own layer until its background
build is ready: `--only first` measures that alone. An index that is missing is made before.
"""

import json
import os
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from sys import executable
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

from benchmarks import raw
from benchmarks.llamacpp.__main__ import facts, prepared_index
from benchmarks.llamacpp.contenders import PEER
from benchmarks.published.contexts import prompts
from benchmarks.raw import GRADED
from benchmarks.servers import kept_to
from demo.published import MODELS, model_file
from logitsieve.cli.background import BackgroundIndex, warm_decoder
from logitsieve.cli.generate import DENSE, Handover
from logitsieve.cli.options import idle_cores
from logitsieve.client.llamacpp import attach
from logitsieve.llamacpp import open_context
from logitsieve.llamacpp.hosts import HOSTS

MEASURED = ("gemma-3-270m", "qwen2.5-coder-0.5b")  # by default
CLIENTS = (1, 4, 16)
MINUTES, TOKENS, CTX = 4.5, 20, 256
_, OURS, _ = GRADED  # the default grade
PARTS = ("clients", "first")


def main() -> None:
    parser = raw.parser(__doc__, "llamacpp-clients.json.gz")
    parser.add_argument("--models", nargs="*", default=list(MEASURED), choices=MODELS)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of all clients together")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a server")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone, keep the other")
    options = parser.parse_args()
    results = raw.read(options.out)
    made = {name: (model_file(name), prepared_index(name)) for name in options.models}
    places = list(product(made, HOSTS))
    began = monotonic()
    for number, (name, engine) in enumerate(places, 1):
        gguf, index = made[name]
        ours = results.setdefault(name, {})
        ours |= facts(index)
        if options.only != "first":
            until = began + 60 * options.minutes * number / len(places)
            found = clients(gguf, index, engine, until, options.threads)
            ours.setdefault("clients", {}).setdefault(engine, {})[str(options.threads)] = found
            print(name, engine, found, flush=True)
        raw.write(options.out, results)
    for name, engine in places if options.only != "clients" else ():
        results[name].setdefault("first", {})[engine] = first(made[name][0], engine)
        print(name, engine, results[name]["first"][engine], flush=True)
        raw.write(options.out, results)


def clients(
    gguf: Path, index: Path, engine: str, until: float, threads: int = 1
) -> dict[str, dict[str, Any]]:
    """Measure until a time of `monotonic`, one round or more: by head and number of clients."""
    heads = {PEER: ("--head", DENSE), OURS: ("--index", str(index))}
    asked = prompts()[: max(CLIENTS)]
    found: dict[str, dict[str, Any]] = {name: {} for name in heads}
    with ExitStack() as opened:
        asking = {
            name: partial(ask, opened.enter_context(endpoint(gguf, engine, threads, options)))
            for name, options in heads.items()
        }
        for one in asking.values():
            one(asked[-1])  # warms up
        alone: dict[str, list[tuple[str, int]]] = {}
        longest = 0.0
        while not found[OURS] or monotonic() + longest < until:
            began = monotonic()
            for count, (name, one) in product(CLIENTS, asking.items()):
                start = monotonic()
                with ThreadPoolExecutor(count) as pool:
                    answers = list(pool.map(one, asked))
                per_s = sum(tokens for _, tokens in answers) / (monotonic() - start)
                new = {"per_s": [], "texts": 0, "other": 0}
                place = found[name].setdefault(str(count), new)
                place["per_s"].append(per_s)
                if (wanted := alone.setdefault(name, answers)) is not answers:
                    place["texts"] += len(answers)
                    place["other"] += sum(map(tuple.__ne__, answers, wanted))
            longest = max(longest, monotonic() - began)
    for place in (one for by_count in found.values() for one in by_count.values()):
        per_s = place.pop("per_s")
        place["tokens_per_s"] = [statistics.median(per_s), min(per_s), max(per_s)]
    return found


@contextmanager
def endpoint(gguf: Path, engine: str, threads: int, head: tuple[str, ...]) -> Iterator[str]:
    """The address of a `serve-gguf` with a sequence for each client."""
    options: Mapping[str, object] = {
        "engine": engine,
        "threads": threads,
        "parallel": max(CLIENTS),
        "ctx-size": CTX,
        "port": 0,
    }
    command = [executable, "-m", "logitsieve", "serve-gguf", str(gguf), *head]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    with kept_to(sorted(os.sched_getaffinity(0)), command, "stderr") as lines:
        for line in lines:
            if line.rstrip().endswith("/v1"):
                yield line.split()[-1]
                return
    raise RuntimeError("the server did not start")


def ask(address: str, prompt: str) -> tuple[str, int]:
    """The greedy continuation of a prompt, and its tokens."""
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{address}/completions", json.dumps(body).encode(), headers)) as reply:
        made = json.load(reply)
    return made["choices"][0]["text"], made["usage"]["completion_tokens"]


def first(gguf: Path, engine: str) -> dict[str, float]:
    """Seconds until the first token and until the index answers; tokens a second by each."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(first_tokens, gguf, engine, monotonic()).result()


def first_tokens(gguf: Path, engine: str, began: float) -> dict[str, float]:
    """Generate text after text as `generate` does, until the new index has written two of them."""
    threads = idle_cores()
    with TemporaryDirectory() as folder, open_context(gguf, engine, threads=threads) as context:
        out = Path(folder, "indexes", "made", "1")
        making = BackgroundIndex(gguf, out, lambda path: warm_decoder(path, threads, None), engine)
        with making, attach(context, None) as attached:
            handover = Handover(attached, None, making, {"head": DENSE}, threads)
            context.use_threads(max(1, threads - 1))
            own: list[float] = []
            after: list[float] = []
            while len(after) < 2 * TOKENS:
                if making.error:
                    raise RuntimeError(making.error)
                generation = attached.generate(prompts()[0], max_tokens=TOKENS)
                for _ in generation:
                    (after if handover.decoder else own).append(monotonic() - began)
                    handover.follow(generation.counts)
    return {
        "first_s": own[0],
        "ready_s": after[0],
        "before": (len(own) - 1) / (own[-1] - own[0]),
        "after": (len(after) - 1) / (after[-1] - after[0]),
    }


if __name__ == "__main__":
    main()
