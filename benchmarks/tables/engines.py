"""The published models on every engine: `benchmarks.llamacpp.engines`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.llamacpp.contenders import BODY, PEER
from benchmarks.raw import GRADED, RESULTS, load
from benchmarks.tables.figures import ABSENT, UNMEASURED, digits, markdown
from benchmarks.tables.published import instructions

FILE, SERVED, GRAMMARS = "llamacpp-engines", "llamacpp-clients", "llamacpp-grammars"
NEWER = f"{FILE}-avx512"  # on a CPU with more than AVX2
ENGINES = {"wheel": "llama.cpp", "native": "llama.cpp, native build", "ik": "ik_llama.cpp"}
WHEELS = {"llamacpp": "wheel", "ik": "ik"}  # builds of `--engine`
PROOF, DEFAULT, LOOSE = GRADED

Kinds = dict[str, dict[str, dict[str, float]]]  # tokens a second by kind, build and contender


def measured(file: str = FILE) -> bool:
    return (RESULTS / f"{file}.json.gz").exists()


def ways(file: str) -> Iterator[tuple[str, str, str, Kinds]]:
    """Each model, way and number of threads."""
    for model, found in load(file).items():
        places = dict.fromkeys(
            (way, threads)
            for one in found["builds"].values()
            for way, kinds in one.items()
            if isinstance(kinds, dict)
            for by_threads in kinds.values()
            for threads in by_threads
        )
        for way, threads in places:
            yield model, way, threads, dict(kinds_of(found, way, threads))


def kinds_of(
    found: dict[str, Any], way: str, threads: str
) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """Each kind of text; no head is measured once, greedy."""
    builds = found["builds"]
    for kind in next(iter(builds.values()))[way]:
        by_build = {}
        for build, one in builds.items():
            limit = {BODY: one["greedy"][kind][threads][BODY]}
            racing = limit | one[way][kind][threads]
            by_build[build] = {name: each["tokens_per_s"][0] for name, each in racing.items()}
        yield kind, by_build


def best(kinds: Kinds, name: str) -> str:
    """The build on which a contender is the fastest, over all kinds of text."""
    return max(next(iter(kinds.values())), key=lambda build: mean(kinds, build, name))


def mean(kinds: Kinds, build: str, name: str) -> float:
    """Tokens a second over all kinds of text, as many tokens of each."""
    return len(kinds) / sum(1 / one[build][name] for one in kinds.values())


def span(values: list[float], shown: Callable[[float], str]) -> str:
    return f"{shown(min(values))} to {shown(max(values))}"


def own(kinds: Kinds, build: str) -> str:
    if build not in next(iter(kinds.values())):
        return ABSENT
    return span([one[build][PEER] for one in kinds.values()], digits)


def over(kinds: Kinds, build: str, name: str) -> str:
    """Times the fastest engine's own output layer, the least and the most of a kind of text."""
    if name not in next(iter(kinds.values())).get(build, {}):
        return ABSENT
    peer = best(kinds, PEER)
    return span([one[build][name] / one[peer][PEER] for one in kinds.values()], "{:.2f}x".format)


def engines(file: str) -> str:
    """A row for each model, way and number of threads."""
    if not measured(file):
        return UNMEASURED
    shown = list(ways(file))
    builds = [build for build in ENGINES if any(own(kinds, build) for *_, kinds in shown)]
    rows = []
    for model, way, threads, kinds in shown:
        named = f"{model}, {way}, {threads} thread" + "s" * (threads != "1")
        fastest = best(kinds, DEFAULT)
        cells = [named, *(own(kinds, build) for build in builds), over(kinds, "wheel", DEFAULT)]
        cells += [over(kinds, fastest, name) for name in (PROOF, DEFAULT, LOOSE, BODY)]
        rows.append([*cells, ENGINES[fastest]])
    head = ["tokens a second", *(ENGINES[build] for build in builds)]
    head += [f"`{DEFAULT}` in llama.cpp", *(f"`{name}`" for name in (PROOF, DEFAULT, LOOSE))]
    table = markdown([*head, "no head", "engine of these"], rows)
    return "\n".join([table, *about(file), ""])


def about(file: str) -> list[str]:
    """The CPU and what each engine uses of it."""
    found = (one for model in load(file).values() for one in model["builds"].values())
    return list(
        dict.fromkeys(
            f"{one['cpu']}; {one['name']}: {instructions(one['system_info'])}." for one in found
        )
    )


def grammars() -> str:
    """A row for each model and way: texts of a schema beside free ones."""
    if not measured(GRAMMARS):
        return UNMEASURED
    rows = []
    for model, found in load(GRAMMARS).items():
        for way, by_name in found["ways"].items():
            speeds = {name: one["tokens_per_s"][0] for name, one in by_name.items()}
            cells = [digits(speed) for speed in speeds.values()]
            ours, free, *_ = speeds.values()
            rows.append([f"{model}, {way}", *cells, f"{ours / free:.2f}x"])
    head = ["tokens a second", *by_name, "by a schema / free"]
    return markdown(head, rows)


def shares() -> str:
    """A row for each model: what of a token is the output layer's, and what is gained of it."""
    if not measured():
        return UNMEASURED
    rows = []
    for model, way, threads, kinds in ways(FILE):
        if (way, threads) != ("greedy", "1"):
            continue
        peer, fastest = best(kinds, PEER), best(kinds, DEFAULT)
        shape = load(FILE)[model]["index"]
        share = [1 - one[peer][PEER] / one[peer][BODY] for one in kinds.values()]
        cells = [f"{model}: V = {shape['vocab_size']:,}, D = {shape['dim']:,}"]
        cells += [span(share, "{:.0%}".format)]
        rows.append([*cells, *(over(kinds, fastest, name) for name in (DEFAULT, LOOSE, BODY))])
    head = ["model", "the output layer's share of a token", f"`{DEFAULT}`", f"`{LOOSE}`"]
    return markdown([*head, "the most"], rows)


def clients() -> str:
    """A row for each model, engine and number of threads: through `serve-gguf`."""
    if not measured(SERVED):
        return UNMEASURED
    rows, counts = [], dict[str, None]()
    for model, engine, found in served("clients"):
        for threads, by_head in found.items():
            own, ours = by_head[PEER], by_head[DEFAULT]
            counts |= dict.fromkeys(own)
            cells = [f"{model}, {engine}, {threads} thread" + "s" * (threads != "1")]
            for count in own:
                peer, us = (one[count]["tokens_per_s"][0] for one in (own, ours))
                cells.append(f"{digits(peer)}, {digits(us)} ({us / peer:.2f}x)")
            each = [one for head in (own, ours) for one in head.values()]
            other, texts = (sum(one[key] for one in each) for key in ("other", "texts"))
            rows.append([*cells, f"{other:,} of {texts:,}"])
    head = [f"tokens a second, own layer and `{DEFAULT}`"]
    head += [f"{count} client" + "s" * (count != "1") for count in counts]
    return markdown([*head, "texts other than alone"], rows)


def first_tokens() -> str:
    """A row for each model and engine: `generate` without an index."""
    if not measured(SERVED):
        return UNMEASURED
    head = ["", "first token, s", "index ready, s", "tokens a second before", "after"]
    keys = "first_s", "ready_s", "before", "after"
    found = [(f"{model}, {engine}", one) for model, engine, one in served("first")]
    return markdown(head, [[name, *(digits(one[key]) for key in keys)] for name, one in found])


def served(part: str) -> Iterator[tuple[str, str, Any]]:
    """Each model and engine with what was measured of a part."""
    for model, found in load(SERVED).items():
        for engine, one in found.get(part, {}).items():
            yield model, ENGINES[WHEELS[engine]], one


TABLES: dict[str, Callable[[], str]] = {
    "grammars": grammars,
    "engines": partial(engines, FILE),
    "engines, avx512": partial(engines, NEWER),
    "engines, shares": shares,
    "clients": clients,
    "first tokens": first_tokens,
}
