"""Tables of the experiments that ran once, from the tables that they left in benchmarks/results."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.figures import digits, markdown
from benchmarks.tables.results import kept

Row = dict[str, str]
SPEED = "times as fast"


def value(cell: str) -> float:
    """The first number of a cell: `35,935 (torch)`, `4.2x`, `97.0%`."""
    return float(cell.split()[0].rstrip("x%").replace(",", ""))


def row(name: str, table: int = 0, /, **cells: str) -> Row:
    """The row of a kept table that has these cells (`_` in a column's name is a blank)."""
    wanted = {column.replace("_", " "): cell for column, cell in cells.items()}
    [found] = [each for each in kept(name)[table] if wanted.items() <= each.items()]
    return found


def thousands(cell: str) -> str:
    """Three significant digits."""
    return digits(value(cell))


def speed(cell: str) -> str:
    """As it was kept, without a fraction from 20 times on."""
    return f"{value(cell):,.0f}x" if value(cell) >= 20 else f"{value(cell):.1f}x"


GREEDY, BEAM5 = 0, 2  # tables of translate.md


def translation() -> str:
    """BLEU and the softmax's speed of each head, greedy and with five beams."""
    rows = []
    for label, greedy, beam in (
        ("`exact`", "exact", "exact"),
        ("`graph`, 256 rows in view, candidates", "graph", "graph, candidates"),
        ("`screen`, candidates", "screen", "screen, candidates"),
        ("`screen`, exact log Z", "", "screen, exact log Z"),
        ("`certified`, exact log Z", "certified", "certified, exact log Z"),
    ):
        found = [row("translate", BEAM5, softmax=beam)]
        if greedy:
            found.insert(0, row("translate", GREEDY, softmax=greedy))
        cells = [cell for each in found for cell in (each["BLEU"], each["speed-up"])]
        shares = [f"{value(each['same as exact']):.0f} %" for each in found]
        same = shares[:1] if len(set(shares)) == 1 else shares
        proven = ", proven" * (label.startswith("`certified"))
        rows.append([label, *[""] * (4 - len(cells)), *cells, ", ".join(same) + proven])
    full = []
    for table in (GREEDY, BEAM5):
        faster = min(
            (row("translate", table, softmax=name) for name in ("numpy", "torch")),
            key=lambda each: value(each["µs/step"]),
        )
        full += [faster["BLEU"], f"{digits(value(faster['µs/step']) / 1000)} ms per step"]
    rows.insert(0, ["full softmax, the faster of numpy and torch", *full, "100 %"])
    head = [
        "",
        "greedy: BLEU",
        "softmax",
        "beam 5: BLEU",
        "softmax",
        "same translations as `exact`",
    ]
    return markdown(head, rows)


def generate() -> str:
    """A step of Hugging Face's `generate` with and without the head."""
    rows = []
    for label, mode in (
        ("greedy, 1 prompt", "greedy, B = 1"),
        ("greedy, 8 prompts", "greedy, B = 8"),
        ("greedy, `repetition_penalty` 1.3, 1 prompt", "greedy, repetition_penalty 1.3, B = 1"),
        ("4 beams, 1 prompt", "4 beams, B = 1"),
        ("4 beams, 8 prompts", "4 beams, B = 8"),
        ("`top_k` 50, 1 prompt", "top_k 50, B = 1"),
    ):
        [_, full, full_layer, whole, layer, faster, _] = next(
            each for each in kept("huggingface")[0] if each[""] == mode
        ).values()
        rows.append([label, *map(thousands, (full, whole, full_layer, layer)), speed(faster)])
    head = ['`head="certified"`', "whole step: full softmax", "attached"]
    return markdown([*head, "output layer: full softmax", "attached", ""], rows)


def quality() -> str:
    """Perplexity after two million words."""
    name = "training/quality"
    rows = []
    for label, classes, method in (
        ("full", "10,000", "full"),
        ("**LSH Softmax**", "1,100", "lsh:k=1000;n_uniform=100"),
        ("full, normalised", "10,000", "full:scale=11.111"),
        ("RF-softmax", "100", "rf:n_sampled=100"),
        ("uniform", "1,100", "uniform:n_sampled=1100"),
    ):
        found = row(name, method=method)
        over = "" if method == "full" else f"{value(found['over full']):+.1f} %"
        rows.append([label, classes, found["perplexity"], over, found["seconds"]])
    head = ["loss", "scored classes", "perplexity, mean (least to most of three seeds)"]
    return markdown([*head, "over full", "seconds"], rows)


CLASSES = (  # loss, its options at 100 classes and at 1,100
    ("exp", "exp:n_sampled=100", ["exp:n_sampled=1100"]),
    ("quadratic", "quadratic:n_sampled=100", ["quadratic:n_sampled=1100"]),
    ("kmeans, 1 to 5 uniform", "kmeans:k=17;n_uniform=83", ["kmeans:k=183;n_uniform=917"]),
    (
        "lsh, 10 to 1 uniform; 1 to 5",
        "lsh:k=91;n_uniform=9",
        ["lsh:k=1000;n_uniform=100", "lsh:k=183;n_uniform=917"],
    ),
    ("log-uniform", "log-uniform:n_sampled=100", ["log-uniform:n_sampled=1100"]),
    ("rf", "rf:n_sampled=100", ["rf:n_sampled=1100"]),
    ("unigram", "unigram:n_sampled=100", ["unigram:n_sampled=1100"]),
    ("nce", "nce:n_sampled=100", ["nce:n_sampled=1100"]),
    ("lns, corrected, by context", "", ["lns:cap=917;n_uniform=183;query=embedding"]),
    (
        "lns, corrected, by label",
        "lns:cap=83;n_uniform=17;query=label",
        ["lns:cap=917;n_uniform=183;query=label"],
    ),
    ("importance", "importance:n_sampled=100", ["importance:n_sampled=1100"]),
    ("lsh, none uniform", "", ["lsh:k=1100;n_uniform=0"]),
    ("uniform", "uniform:n_sampled=100", ["uniform:n_sampled=1100"]),
    ("top-k", "", ["top-k:k=1100"]),
)


def classes() -> str:
    """Perplexity after 150,000 words with 100 classes and with 1,100."""
    name = "training/classes/quality"

    def perplexity(method: str) -> str:
        return f"{value(row(name, method=method)['perplexity']):,.0f}"

    rows = []
    for label, few, many in CLASSES:
        cells = [perplexity(few) if few else "", "; ".join(map(perplexity, many))]
        seconds = "; ".join(row(name, method=method)["seconds"] for method in many)
        rows.append([label, *cells, seconds])
    return markdown(["loss", "100 classes", "1,100 classes", "seconds at 1,100"], rows)


def features() -> str:
    """RF-softmax by its number of features, then by nu."""
    name = "training/features/quality"

    def line(option: str, part: str, head: str) -> list[list[str]]:
        found = [each for each in kept(name)[0] if each["part"] == part]
        values = [each["method"].rpartition(f"{option}=")[2] for each in found]
        perplexities = [f"{value(each['perplexity']):,.0f}" for each in found]
        blank = [""] * (6 - len(found))
        return [
            [head, *(f"{float(number):,g}" for number in values), *blank],
            ["perplexity", *perplexities, *blank],
        ]

    rows = line("n_features", "features", "R (nu = 4)") + line("nu", "nu", "nu (R = 512)")
    return markdown(["RF-softmax, 100 classes, 150,000 words, rate 0.8", *[""] * 6], rows)


SMALL_LNS = "lns:cap=150;n_uniform=50;hashes=13;tables=20"
LABELS = (
    ("full", "full"),
    ("LNS by label, 150 + 50 candidates, 20 tables of 13 bits", SMALL_LNS),
    ("LNS by context, the same", f"{SMALL_LNS};query=embedding"),
    (
        "LNS by label, 400 + 100, 20 tables of 12 bits",
        "lns:cap=400;n_uniform=100;hashes=12;tables=20",
    ),
    (
        "LNS by label, 50 tables of 9 bits as in the paper (for Text8), 2,236 + 447",
        "lns:hashes=9;tables=50",
    ),
    ("LSH Softmax, 4,472 + 447", "lsh"),
    ("quadratic kernel, 100", "quadratic"),
    ("RF-softmax, 100", "rf"),
    ("log-uniform, 1,000", "log-uniform:n_sampled=1000"),
    ("NCE, 1,000", "nce:n_sampled=1000"),
    ("unigram, 1,000", "unigram:n_sampled=1000"),
    ("k-means softmax, 4,472 + 22,360", "kmeans"),
    ("uniform, 100", "uniform"),
    ("EXP, 100", "exp"),
    ("top-k, 4,472", "top-k"),
    ("D-softmax", "d-softmax"),
)


def labels() -> str:
    """P@1 among 200,000 labels after 300 s, and how soon each is where `full` ends."""
    name = "training/extreme"
    rows = []
    for label, method in LABELS:
        found = row(name, task="synthetic", method=method)
        sooner = "300 s" if method == "full" else found["reaches"]
        step = f"{value(found['ms a step']):,.0f}"
        rows.append([label, found["P@1"], sooner, step])
    full = row(name, task="synthetic", method="full")["P@1"]
    reaches = f"reaches the {full} that `full` has then, how many times sooner"
    return markdown(["loss", "P@1 after 300 s", reaches, "ms a step"], rows)


def periods() -> str:
    """LNS after 60 s by how often its tables are rebuilt."""
    name = "training/periods/extreme"
    tasks = ("periods: 1", "periods: 50", "periods: 50 growing", "periods: never")
    found = [row(name, task=task) for task in tasks]
    head = ["tables rebuilt", "every step", "every 50", "every 50, growing", "never"]
    return markdown(
        head,
        [
            ["P@1 after 60 s", *(each["P@1"] for each in found)],
            ["steps in 60 s", *(each["steps"] for each in found)],
            ["ms a step", *(f"{value(each['ms a step']):,.0f}" for each in found)],
        ],
    )


SKIP_GRAM = (
    ("full", "full"),
    ("unigram", "unigram:n_sampled=1000"),
    ("log-uniform", "log-uniform:n_sampled=1000"),
    ("importance", "importance:n_sampled=1000"),
    ("nce", "nce:n_sampled=1000"),
    ("lsh, 91 uniform", "lsh:k=909;n_uniform=91"),
    ("lsh, none uniform", "lsh:k=1000;n_uniform=0"),
    ("kmeans", "kmeans:k=166;n_uniform=834"),
    ("rf", "rf:n_sampled=1000"),
    ("uniform", "uniform:n_sampled=1000"),
    ("quadratic", "quadratic:n_sampled=1000"),
    ("top-k", "top-k:k=1000"),
    ("lns, label, corrected", "lns:cap=834;n_uniform=166;query=label"),
    ("lns, label, as published", "lns:cap=834;n_uniform=166;query=label;corrected=false"),
    ("lns, context, corrected", "lns:cap=834;n_uniform=166;query=embedding"),
    ("lns, context, as published", "lns:cap=834;n_uniform=166;query=embedding;corrected=false"),
    ("d-softmax", "d-softmax"),
    ("exp", "exp:n_sampled=1000"),
)


def skip_gram() -> str:
    """P@1, loss and time of each loss after 40 s of skip-gram."""
    rows = []
    for label, method in SKIP_GRAM:
        found = row("training/skip-gram/extreme", method=method)
        loss, step = value(found["full loss"]), value(found["ms a step"])
        rows.append([label, found["P@1"], f"{loss:.1f}", f"{step:,.0f}"])
    return markdown(["loss", "P@1", "full loss", "ms a step"], rows)


SIZES = (  # V, D, B
    ("250,000", "512", "256"),
    ("1,000,000", "512", "256"),
    *((words, "650", "1") for words in ("10,000", "33,000", "44,000", "250,000")),
)


def steps() -> str:
    """How many times as fast as the full softmax a step is."""
    rows = []
    methods = ("uniform", "lsh", "rf", "top-k", "exp")
    for words, dim, batch in SIZES:
        found = [row("training/steps", V=words, D=dim, B=batch, method=name) for name in methods]
        full = sorted(value(each["full"]) / 1000 for each in found)
        between = f"{digits(full[0])} to {digits(full[-1])}"
        rows.append([f"{words}, {dim}, {batch}", between, *(speed(each[SPEED]) for each in found)])
    return markdown(["V, D, B", "full, ms", *(f"`{name}`" for name in methods)], rows)


def searches() -> str:
    """The same for k-means softmax and LNS."""
    rows = []
    for words, dim, batch in SIZES:
        if words == "1,000,000":
            continue
        kmeans, label, context = (
            row("training/search/steps", V=words, D=dim, B=batch, method=name)
            for name in ("kmeans", "lns:query=label", "lns:query=embedding")
        )
        again, step = (digits(value(kmeans[part]) / 1000) for part in ("re-index", "step"))
        rows.append([f"{words}, {dim}, {batch}", speed(kmeans[SPEED]), f"{again} of {step} ms"])
        rows[-1] += [speed(each[SPEED]) for each in (label, context)]
    head = ["V, D, B", "`kmeans`", "of its step re-index", "`lns` by label", "`lns` by context"]
    return markdown(head, rows)


def serving() -> str:
    """How quick a softmax is to serve, by the loss that trained it."""
    rows = []
    for label, method in (
        ("full", "full"),
        ("LSH Softmax", "lsh:k=1000;n_uniform=100"),
        ("uniform", "uniform:n_sampled=1100"),
    ):
        found = row("training/serving", trained_with=method)
        screened = f"{found['screen, µs']} ({found['times as fast']})"
        rows.append([label, found["perplexity"], screened, found["candidates"]])
        rows[-1] += [found["P@1 (low)"].split()[0], found["certified, µs"]]
    head = ["trained with", "perplexity", "screen, µs (times as fast as exact)", "candidates"]
    return markdown([*head, "P@1", "certified, µs"], rows)


TASKS = (  # the task, its k = sqrt V and 10 sqrt V, and decimals of what is judged
    ("500 labels", ("22", "224"), 3),
    ("5,000 labels", ("71", "707"), 3),
    ("language model", ("100", "1000"), 0),
)
PERIODS = ("1", "5", "10", "50")


def clusters() -> str:
    """Quality and time of k-means softmax by how often its clusters are rebuilt."""
    name = "training/clusters"
    rows = []
    for task, counts, places in TASKS:
        full = row(name, task=task, k="full")
        rows.append([task, "full", f"{value(full['good']):.{places}f}"])
        rows[-1] += ["", digits(value(full["the rest"]), 2)]
        for label, k in zip(("sqrt V", "10 sqrt V"), counts, strict=True):
            found = [row(name, task=task, k=k, p=period) for period in PERIODS]
            good = " / ".join(f"{value(each['good']):.{places}f}" for each in found)
            again = " / ".join(digits(value(each["clustering"]), 2) for each in found)
            rest = sum(value(each["ms: search"]) + value(each["the rest"]) for each in found) / 4
            rows.append(["", label, good, again, digits(rest, 2)])
    head = ["task", "k", "accuracy, or perplexity of the language model", "clustering, ms"]
    return markdown([*head, "the rest of a step, ms"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "translation": translation,
    "generate": generate,
    "quality": quality,
    "classes": classes,
    "features": features,
    "labels": labels,
    "periods": periods,
    "skip-gram": skip_gram,
    "training steps": steps,
    "searches": searches,
    "serving": serving,
    "clusters": clusters,
}
