"""The sentences of each page that quote raw results, with the expressions of their figures.

A sentence here is a part of the page's prose, word for word; it has to be there exactly once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from benchmarks.tables.figures import figure, fixed, number, percent, ratio, whole
from benchmarks.tables.quotations import QUOTATIONS
from benchmarks.tables.results import GROWTH, LOW, Race, Time, load, of, present, race
from benchmarks.tables.service import closed_load


def readme() -> Iterator[str]:
    yield from held_to_avx2("Held to AVX2, `certified` takes", " times as long.")
    yield f"A gRPC call from Python costs some {fixed(unary() / 1000, 1)} ms,"


def home() -> Iterator[str]:
    yield from held_to_avx2("it makes `certified` take", " times as long as AVX-512 with VNNI")


def held_to_avx2(before: str, after: str) -> Iterator[str]:
    """The time of `certified` without AVX-512 over that with it, once both were measured."""
    if not present("screen-avx2"):
        return
    times, held = (load(name)["us_per_row"] for name in ("screen", "screen-avx2"))
    name = "logitsieve certified"
    ratios = [held[rows][name]["median"] / times[rows][name]["median"] for rows in times]
    yield f"{before} {fixed(min(ratios), 1)} to {fixed(max(ratios), 1)}{after}"


def unary() -> float:
    """Microseconds of a TopK call of one row."""
    return float(load("rpc")["asked"]["alone"]["us"]["logitsieve"]["p50"])


def service() -> Iterator[str]:
    found = load("rpc")
    compute = whole(found["asked"]["alone"]["server_compute_us_p50"])
    yield (
        f"A unary call of one row takes {whole(unary())} us on one machine, of which {compute} us "
        f"compute; a message of a stream takes {fixed(streamed(), 2)} of a unary call."
    )


def streamed() -> float:
    """A small call on a stream over a unary one."""
    return float(statistics.median(load("rpc")["steps"][0]["ratios_p50"]))


def heads() -> Iterator[str]:
    lm = race("lm-docs")
    share = lm.point("logitsieve certified")["bytes_beyond_w"] / lm.results["weight_bytes"]
    yield f"bytes per row and 4 D^2: {percent(share)} % of W at V = 10,000, D = 200."


def benchmarks() -> Iterator[str]:
    yield from machine()
    yield from screen()
    yield from proof()
    yield from growth()
    yield from under_load()
    yield from calls()


def machine() -> Iterator[str]:
    about = race("lm-docs").results["machine"]
    l1, l2, l3 = (about["caches"][level] for level in ("L1", "L2", "L3"))
    rates = about["read_GBps"]
    yield (
        f"L1 {whole(l1 / 2**10)} KiB, L2 {whole(l2 / 2**20)} MiB, L3 {whole(l3 / 2**20)} MiB; "
        f"one core reads {whole(rates['L3'])} GB/s from L3 and {whole(rates['DRAM'])} from DRAM."
    )


def screen() -> Iterator[str]:
    found = load("screen")
    yield (
        f"it is judged on {whole(found['contexts'])} others: **P@1 {fixed(found['p1'], 4)}, "
        f"P@5 {fixed(found['p5'], 4)}** (lower bounds {fixed(found['p1_low'], 4)}, "
        f"{fixed(found['p5_low'], 4)}), C = {whole(found['screen']['clusters'])}, "
        f"{whole(found['candidates'])} candidates per row."
    )


def proof() -> Iterator[str]:
    found = load("race/proof")
    wrong = sum(each["by the float64 judge"] for each in found["wrong"].values())
    yield (
        f"On all {whole(found['contexts'])} contexts of unseen text (lm-docs-10k-200), k = 1, 5, "
        f"10 and 64, {whole(wrong)} answers are wrong against float64"
    )


def growth() -> Iterator[str]:
    found = load(GROWTH)
    words = max(found, key=int)
    large, small = Race(found[words]), Race(found[min(found, key=int)])
    best, certified = of(large.exact()), of(large.head("certified"))
    fast, first = of(large.head("screen", LOW)), of(small.head("screen", LOW))
    exact = of(large.head("exact"))
    yield (
        f"At V = {whole(int(words))}, where W is {whole(large.results['weight_bytes'] / 1e6)} MB, "
        f"the best exact float32 ({name(best)}) takes {number(best.us / 1000)} ms, `certified` "
        f"{number(certified.us / 1000)} ms ({ratio(best.us / certified.us)}x) and the screen "
        f"{number(fast.us)} µs ({ratio(best.us / fast.us)}x), and `exact` takes "
        f"{ratio(exact.us / best.us)} times as long as the best."
    )
    yield (
        f"the screen takes {ratio(fast.us / first.us)} times as long at {whole(int(words))} words "
        f"as at {whole(small.vocab_size)}, while V grows by "
        f"{whole(large.vocab_size / small.vocab_size)}."
    )


def name(time: Time) -> str:
    return figure(time.method)


def under_load() -> Iterator[str]:
    l1 = load("load")["machine"]["caches"]["L1"]
    yield f"one core each of a machine with {whole(l1 / 2**10)} KiB of L1,"
    small, large = closed_load(1, 64), closed_load(64, 16)
    yield (
        "where 64 clients send single rows it reaches "
        f"{fixed(small['own head']['good_per_s'] / small['echo']['good_per_s'], 2)} of the echo's "
        f"rate, and {ratio(large['own head']['good_per_s'] / large['exact']['good_per_s'])} times "
        "the rows of `exact` where 16 clients send 64."
    )
    [found] = load("load")["batching"]
    alone, queued, *waiting = (
        found["runs"][run] for run in ("alone", "delay 0 us", "delay 100 us", "delay 200 us")
    )
    yield (
        f"{number(alone['good_per_s'])} answers per second when each request is computed alone "
        f"(p50 {number(alone['us']['p50'] / 1000)} ms), {number(queued['good_per_s'])} with queued "
        f"requests in batches ({number(queued['us']['p50'] / 1000)} ms): "
        f"{ratio(queued['good_per_s'] / alone['good_per_s'])} times as many at "
        f"{ratio(queued['us']['p50'] / alone['us']['p50'])} times the latency."
    )
    first, second = (number(each["good_per_s"]) for each in waiting)
    yield f"(`--batch-delay-us`) makes it {first} and {second}: under this load"
    over = load("load")["overload"]
    peak, twice = over["runs"]["peak"], over["runs"]["2x"]
    yield (
        f"at most {number(peak['good_per_s'])} answers per second; under twice that load the "
        f"server answers {number(twice['good_per_s'])} in time, {fixed(over['share_of_peak'], 2)} "
        f"of the peak, at p50 {number(twice['us']['p50'] / 1000)} ms of the 1 s"
    )


def calls() -> Iterator[str]:
    found = load("rpc")
    local = number(found["in_process_us_p50"])
    yield f"with an index whose default head takes {local} µs in process."
    yield f"A small call takes {fixed(streamed(), 2)} times as long on a stream;"


SENTENCES: dict[str, Callable[[], Iterator[str]]] = {
    "README.md": readme,
    "docs/benchmarks.md": benchmarks,
    "docs/heads.md": heads,
    "docs/index.md": home,
    "docs/service.md": service,
    **QUOTATIONS,
}
