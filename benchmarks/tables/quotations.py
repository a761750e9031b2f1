"""The sentences that quote experiments which ran once; sentences.py has all the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.tables.experiments import BEAM5, GREEDY, SPEED, Row, row, value
from benchmarks.tables.figures import fixed, number, ratio, whole
from benchmarks.tables.results import kept

BEAM1 = 1  # the table of translate.md; in translate-deep.md it is the first
DEEP1, DEEP5 = 0, 1


def beam_search() -> Iterator[str]:
    proven = value(row("translate", BEAM5, softmax="certified, exact log Z")["µs/row"])
    best = value(row("translate", GREEDY, softmax="certified")["µs/row"])
    yield f"most of the time ({whole(proven - best)} of {whole(proven)} µs per row)"
    lost = [
        value(row("translate", table, softmax="exact")["BLEU"])
        - value(row("translate", table, softmax="screen, candidates")["BLEU"])
        for table in (BEAM5, BEAM1)
    ]
    yield f"loses {fixed(lost[0], 2)} BLEU at beam 5, {fixed(lost[1], 2)} at beam 1."

    def deep(table: int, softmax: str) -> Row:
        return row("translate-deep", table, softmax=softmax)

    def bleu(found: Row) -> str:
        return fixed(value(found["BLEU"]), 2)

    five, proven5 = deep(DEEP5, "screen, candidates"), deep(DEEP5, "screen, exact log Z")
    one = deep(DEEP1, "screen, candidates")
    speeds = [fixed(value(found["speed-up"]), 1) for found in (five, proven5, one)]
    yield (
        f"BLEU {bleu(five)} by its candidates, {bleu(proven5)} with the exact log Z, beside "
        f"{bleu(deep(DEEP5, 'exact'))}, and {bleu(one)} beside {bleu(deep(DEEP1, 'exact'))} at "
        f"beam 1, at {speeds[0]}x, {speeds[1]}x and {speeds[2]}x the faster full softmax"
    )


def decoding() -> Iterator[str]:
    table = 1

    def of(name: str) -> Row:
        return row("decoding/normalizers", table, **{"normalizer,_head": name})

    def us(name: str) -> str:
        return whole(value(of(name)["µs a row: median, mean"].replace(",", "")))

    def perplexity(name: str) -> str:
        return fixed(value(of(name)["perplexity"]), 1)

    exact, certified = "`exact`, `exact`", "`certified`, `certified`"
    screen, svd, lists = "`lowrank`, `screen`", "`lowrank`, `svd`", "`candidates`, `screen`"
    off = float(of(certified)["log p off: mean, most"].partition(",")[0])
    yield (
        f"the full softmax in numpy takes {us('full softmax, numpy')} µs and has a perplexity of "
        f"{perplexity(exact)}. `certified` takes {us(certified)} µs and gives "
        f"{perplexity(certified)} (log-probabilities are off by {fixed(off, 3)} on average). "
        f"`lowrank` with R = 20 takes {us(screen)} µs under `screen` and {us(svd)} µs under `svd`, "
        f"and gives {perplexity(screen)} and {perplexity(svd)}. `candidates` takes {us(lists)} µs, "
        f"for the {whole(value(of(lists)['coverage']))} % of the words"
    )
    yield f"faster than the whole product ({ratio(value(of(screen)['speed-up']))}x;"


def perplexity(method: str, name: str = "training/classes/quality") -> str:
    return whole(value(row(name, method=method)["perplexity"]))


def seconds(method: str, name: str = "training/classes/quality") -> float:
    return value(row(name, method=method)["seconds"])


def share_of_full(method: str, name: str, places: int) -> str:
    """The time of a loss over that of `full`."""
    return fixed(seconds(method, name) / seconds("full", name), places)


LSH, KMEANS = "lsh:k=1000;n_uniform=100", "kmeans:k=183;n_uniform=917"


def experiments() -> Iterator[str]:
    yield from perplexities()
    yield from many_labels()
    yield from steps()
    yield from serving()
    yield from gradients()


def perplexities() -> Iterator[str]:
    main, classes = "training/quality", "training/classes/quality"
    yield f"seed by seed), in {share_of_full(LSH, main, 2)} of its time,"
    yield f"where `full` is at {perplexity('full')} in {whole(seconds('full'))} s"
    yield f"D-softmax is at {perplexity('d-softmax')} in {whole(seconds('d-softmax'))} s."
    yield f"without it, {perplexity('lsh:k=1100;n_uniform=0')}, and"
    yield f"({perplexity('lsh:k=183;n_uniform=917')}, {perplexity(LSH)}: little more than noise)"
    few = "quadratic:n_sampled=100"
    yield (
        f"the quadratic kernel is at {perplexity(few)} with a hundred classes, but takes nearly as "
        f"long as `full` ({whole(seconds(few))} s). K-means softmax is where `full` is too, in "
        f"{share_of_full(KMEANS, classes, 1)} of its time."
    )
    large = [found for found in kept("training/features/quality")[0] if found["part"] == "large"]
    first, second, full = (whole(value(found["perplexity"])) for found in large)
    times = [whole(value(found["seconds"])) for found in large]
    yield (
        f"{first} with R = 2,048, {second} with 8,192, the full normalised softmax {full}, in "
        f"{times[0]}, {times[1]} and {times[2]} seconds"
    )


def many_labels() -> Iterator[str]:
    name = "training/extreme"
    full, kmeans = (row(name, task="synthetic", method=method) for method in ("full", "kmeans"))
    yield f"Full is only at {whole(value(full['steps']))} steps after 300 s,"
    again = whole(value(kmeans["of it re-index"]))
    yield f"Of a step of k-means softmax {again} ms are clusters"
    fresh, old = (
        row("training/periods/extreme", task=task) for task in ("periods: 1", "periods: 50")
    )
    yield (
        f"a step costs {whole(value(old['ms a step']))} ms with them instead of "
        f"{whole(value(fresh['ms a step']))}."
    )
    words = row("training/skip-gram/extreme", method="full")
    yield f"In 40 seconds the full softmax is at {whole(value(words['steps']))} steps;"


def steps() -> Iterator[str]:
    def ms(name: str, method: str, column: str = "step", **shape: str) -> float:
        return value(row(f"training/{name}", method=method, **shape)[column]) / 1000

    shape = {"part": "kernel", "V": "500,000"}
    small = ms("steps", "rf:n_sampled=10", **shape)
    more = ms("kernel/steps", "rf:n_features=1024;n_sampled=10", **shape)
    exact = ms("steps", "exp:n_sampled=10", **shape)
    yield f"here a step takes {fixed(small, 1)} ms with 512 and {fixed(more, 1)} ms with 1,024"
    yield f"and {whole(exact)} ms with EXP: 1/{whole(exact / small)} and 1/{whole(exact / more)}."
    one = {"V": "250,000", "B": "1"}
    again, whole_step = ms("steps", "lsh", "re-index", **one), ms("steps", "lsh", **one)
    yield f"({fixed(again, 1)} of {fixed(whole_step, 1)} ms at 250,000)"

    def drawing(method: str) -> tuple[str, str]:
        found = [
            value(each["proposal"]) / 1000
            for each in kept("training/steps")[0]
            if each["part"] == "growth" and each["method"] == method
        ]
        return number(min(found)), number(max(found))

    rf, lsh, exp = map(drawing, ("rf:n_sampled=10", "lsh:k=9;n_uniform=1", "exp:n_sampled=10"))
    yield (
        f"RF-softmax between {rf[0]} and {rf[1]} ms throughout, `lsh` {lsh[0]} to {lsh[1]}, `exp` "
        f"{exp[0]} to {exp[1]}."
    )


def serving() -> Iterator[str]:
    uniform, full, lsh = (
        value(row("training/serving", trained_with=method)["entropy"])
        for method in ("uniform:n_sampled=1100", "full", LSH)
    )
    yield (
        f"(a mean entropy of {fixed(uniform, 1)} nats on the words that judge, where the others "
        f"have {fixed((full + lsh) / 2, 1)})"
    )


def gradients() -> Iterator[str]:
    def error(method: str, column: str = "error, W") -> str:
        return fixed(value(row("training/gradients", method=method)[column]), 2)

    lns = "lns:cap=917;n_uniform=183;query="
    cosine = fixed(value(row("training/gradients", method=LSH)["cosine, W"]), 3)
    yield (
        f"the error of the gradient in W is {error(LSH)} for `lsh` (cosine {cosine}), "
        f"{error('log-uniform:n_sampled=1100')} for `log-uniform`, "
        f"{error('unigram:n_sampled=1100')} for `unigram`, {error('rf:n_sampled=1100')} for `rf`, "
        f"`kmeans` and `quadratic`, and {error('uniform:n_sampled=1100')} for `uniform`; `lns` has "
        f"{error(lns + 'embedding')} by context and {error(lns + 'label')} by label, and EXP, "
        f"which computes all logits, {error('exp:n_sampled=1100')}."
    )
    yield f"`lsh` errs less in one step ({error('lsh:k=1100;n_uniform=0')})"
    yield f"`lns` by context hardly does either ({error(lns + 'embedding')})"
    yield f"(cosine {error('nce:n_sampled=1100', 'cosine, W')})."


def choice() -> Iterator[str]:
    """docs/training/index.md."""
    name = "training/clusters"
    few = row(name, task="5,000 labels", k="71", p="50")
    full = row(name, task="5,000 labels", k="full")
    good = [fixed(value(found["good"]), 3) for found in (few, full)]
    yield f"is right for {good[0]} of the rows instead of {good[1]},"
    share = share_of_full(LSH, "training/quality", 2)
    yield f"With 1,100 classes `lsh` learns as much as `full` in {share} of its time."
    yield f"So does `kmeans` in {share_of_full(KMEANS, 'training/classes/quality', 1)},"

    def p1(method: str) -> str:
        return fixed(value(row("training/skip-gram/extreme", method=method)["P@1"]), 2)

    yield (
        f"has a P@1 of {p1('unigram:n_sampled=1000')} to {p1('log-uniform:n_sampled=1000')} with "
        f"these two, {p1('lsh:k=909;n_uniform=91')} with `lsh`, {p1('rf:n_sampled=1000')} with "
        f"`rf`, {p1('uniform:n_sampled=1000')} with `uniform` and {p1('full')} with `full`."
    )

    def times(words: str, batch: str, method: str) -> float:
        return value(row("training/steps", V=words, B=batch, method=method)[SPEED])

    one = [whole(times("250,000", "1", method)) for method in ("rf", "uniform")]
    yield (
        f"at V = 250,000 and one row, `lsh` is {ratio(times('250,000', '1', 'lsh'))} times as fast "
        f"as `full`, `rf` {one[0]} times and `uniform` {one[1]} times,"
    )


QUOTATIONS: dict[str, Callable[[], Iterator[str]]] = {
    "docs/beam-search.md": beam_search,
    "docs/decoding.md": decoding,
    "docs/training/experiments.md": experiments,
    "docs/training/index.md": choice,
}
