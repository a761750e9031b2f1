"""The figures that no raw file holds: where they stand, and what measured them.

A paragraph or table is named by its page and by words of it. Any other paragraph whose figures look
measured has to be written from the raw results, and what is written from them may not be listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.tables.page import Rendered

PARAGRAPH = re.compile(r"(?:^[^\n]+\n?)+", re.MULTILINE)
MEASURED = re.compile(
    r"""
    (?<![\w.,^{-]) \d[\d.,]*
    (?: \s?(?:µs|us|ms|ns|GB/s|BLEU|nats)\b | x\b | \s(?:s|seconds|times)\b )
    | P@\d+ \s (?!0\.99?8?0?\b) \d[\d.]*          # a precision, but for the usual targets
    | (?<![\w.,^/-]) (?!0\.(?:998|990|001)\b) \d+\.\d{3,} \b
    """,
    re.VERBOSE,
)
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`]*`", re.MULTILINE | re.DOTALL)
NUMBER_CELL = re.compile(r"\|\s*\*{0,2}[-+]?\d[\d.,]*\s?[x%]?\*{0,2}\s*(?=\|)")
MANY_NUMBERS = 4  # make a table one of measurements


class Listed(NamedTuple):
    """A paragraph or table, by words of it, and where its figures come from."""

    page: str
    words: str
    source: str


def paragraphs(rendered: Rendered) -> Iterator[str]:
    """Those of a page with figures that look measured and that nothing writes."""
    text = CODE.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), rendered.text)
    for start, end in rendered.covered:
        text = text[:start] + re.sub(r"[^\n]", "~", text[start:end]) + text[end:]
    for place in PARAGRAPH.finditer(text):
        if MEASURED.search(place[0]) or len(NUMBER_CELL.findall(place[0])) >= MANY_NUMBERS:
            yield rendered.text[place.start() : place.end()]


def unaccounted(page: str, rendered: Rendered) -> list[str]:
    """What is measured and not listed, and what is listed in vain."""
    listed = [each for each in LISTED if each.page == page]
    met: set[Listed] = set()
    problems = []
    for paragraph in paragraphs(rendered):
        mine = [each for each in listed if each.words in " ".join(paragraph.split())]
        met.update(mine)
        if not mine:
            problems.append(f"no raw result, nor listed in ledger.py: {paragraph[:90]!r}")
    vain = [each for each in listed if each not in met]
    return problems + [f"listed in ledger.py in vain: {each.words!r}" for each in vain]


SETTING = "a limit, a default or a definition: nothing measured it"
ONCE = "an experiment at commit c11a3c0, which is no longer in the tree"
TRAINING = "`python -m benchmarks.training` at commit c11a3c0, beyond the tables that it left"
AVX2 = "`python -m benchmarks.screen --index`, with and without the variables of AVX2"
KERNELS_AVX2 = "`python -m benchmarks.kernels`, with the variables of AVX2"
COLD = "variants of the screen after `benchmarks.timing.clear_cache`, timed by hand"
COUNTED = "rows that `certified` leaves, counted and timed over contexts of lm-docs, by hand"
GAPS = "log Z in float64 and intervals of 1,000 contexts of `benchmarks.exactness nmt`, by hand"
CALLS_BEFORE = "`python -m benchmarks.rpc` at commit b4dc337, on the machine of the newer figures"
TWO_DOMAINS = "builds on one domain of nmt-de-en, `evaluate` on the test text of both"

LISTED = (
    Listed("docs/beam-search.md", "P@10, which beam 5 needs", ONCE),
    Listed("docs/beam-search.md", "**Build for the beam.**", ONCE),
    Listed("docs/benchmarks.md", "On the Transformer's softmax", AVX2),
    Listed("docs/benchmarks.md", "Held to AVX2, whose integer products", KERNELS_AVX2),
    Listed("docs/benchmarks.md", "- Scan all rows first", "variants that were not kept"),
    Listed("docs/benchmarks.md", "below 5 µs the call itself", "`perf stat` over the screen"),
    Listed("docs/benchmarks.md", "**Batching.**", SETTING),
    Listed("docs/benchmarks.md", "Where the time goes, by leaving parts out", COLD),
    Listed("docs/benchmarks.md", "| change | cold time", COLD),
    Listed("docs/benchmarks.md", "**Half an hour**", ONCE),
    Listed("docs/benchmarks.md", "The target is 1.12 times the echo.", CALLS_BEFORE),
    Listed("docs/benchmarks.md", "| clusters | screen |", ONCE),
    Listed("docs/benchmarks.md", "Means of two seeds; k' = 7", ONCE),
    Listed("docs/building.md", "times in turn those that met it", SETTING),
    Listed(
        "docs/building.md", "| budget | misses of 1,000", "nine builds on lm-docs, each evaluated"
    ),
    Listed(
        "docs/building.md", "Of 20 builds on another 55,000", "20 builds on lm-docs, each evaluated"
    ),
    Listed("docs/building.md", "tests/index_builder/test_two_domains.py", "that test"),
    Listed("docs/building.md", "A distance cannot guarantee more", TWO_DOMAINS),
    Listed("docs/building.md", "| fitted on | guard |", TWO_DOMAINS),
    Listed("docs/capture.md", "reached P@1 0.97", "two builds on lm-docs, each evaluated"),
    Listed(
        "docs/certified.md", "30,000 rows of 64 coordinates", "`python -m benchmarks.kernels`, held"
    ),
    Listed("docs/certified.md", "| codes | P = 56", COUNTED),
    Listed("docs/certified.md", "A batch goes through step 2", COUNTED),
    Listed("docs/certified.md", "Rows are refined four at a time", COUNTED),
    Listed("docs/certified.md", "*Better thresholds.*", COUNTED),
    Listed("docs/certified.md", "On a Transformer's softmax of", COUNTED),
    Listed("docs/certified.md", "and D 2^-120", SETTING),
    Listed("docs/certified.md", "| attacks | rows |", "`python -m tests.attacks --minutes 10`"),
    Listed("docs/certified.md", "take 0.9999 of what", "`python -m tests.attacks --minutes 10`"),
    Listed("docs/certified.md", "| halved | found by", "`python -m tests.attacks.halved`"),
    Listed("docs/certified.md", "| halved | what errors took", "`python -m tests.attacks.halved`"),
    Listed(
        "docs/console.md", "| KB, installed |", "sizes of the installed packages, __pycache__ aside"
    ),
    Listed("docs/decoding.md", "the paper's table has 5 to 20x", "Chen et al. 2019, Table 6"),
    Listed("docs/deployment.md", "A client queries the DNS again", SETTING),
    Listed("docs/deployment.md", "gets CANCELLED", SETTING),
    Listed("docs/deployment.md", "**memory of a server**", SETTING),
    Listed("docs/exactness.md", "Logits are held as numbers", SETTING),
    Listed("docs/exactness.md", "closer than 0.03 nats", GAPS),
    Listed("docs/huggingface.md", "they shift by 0.25 to 1.69 nats", ONCE),
    Listed("docs/monitoring.md", "**How many rows.**", SETTING),
    Listed("docs/monitoring.md", "The picture is of one run", ONCE),
    Listed("docs/monitoring.md", "| alert | when |", SETTING),
    Listed("docs/race.md", "| DATA | V | D |", SETTING),
    Listed("docs/race.md", "| method | how it is built |", SETTING),
    Listed("docs/race.md", "The peers written here", "an empty call of `topk`, timed by hand"),
    Listed("docs/ray.md", "| TopK of one row", "300 calls of each in turn, timed by hand"),
    Listed("docs/runbook/LogitsieveHighLatency.md", "One request of a hundred", SETTING),
    Listed("docs/security.md", "| a message |", SETTING),
    Listed("docs/security.md", "They found no defect", "`make fuzz`"),
    Listed("docs/scale.md", "A discrete-event simulation of 10^9 rows", SETTING),
    Listed("docs/scale.md", "One of 100 nodes is lost", SETTING),
    Listed("docs/scale.md", "With one replica the calls that meet the loss", SETTING),
    Listed("docs/service.md", "| flag | default |", SETTING),
    Listed("docs/service.md", "Work estimated at under 100 us", "a hop to a thread, timed by hand"),
    Listed("docs/service.md", "TopK requests without constraints that queue", SETTING),
    Listed("docs/service.md", "Where `--max-in-flight`", "`python -m benchmarks.load`"),
    Listed("docs/service.md", "| series | labels |", SETTING),
    Listed("docs/training/experiments.md", "| | script | question |", SETTING),
    *(
        Listed("docs/training/experiments.md", words, TRAINING)
        for words in (
            "- **Perplexity and precision** are",
            "As in Rawat et al. more features are better",
            "After some 190 steps P@1",
            "With the paper's own numbers of tables",
            "Levy, Chen, Ermon have LSH at",
            "What LSH Softmax trained",
        )
    ),
    Listed("docs/training/full.md", "**Cost.** The three products", TRAINING),
    Listed("docs/training/index.md", "**V up to about 5,000", TRAINING),
    Listed("docs/training/index.md", "`chunked` takes", TRAINING),
    Listed("docs/training/lns.md", "| K, L | ms a step |", TRAINING),
    Listed("docs/training/lns.md", "On the synthetic labels of", TRAINING),
    Listed("docs/training/lsh.md", "Under plain SGD a row moves", TRAINING),
    Listed("docs/training/topk.md", "**Cost.** The search computes", TRAINING),
    Listed("docs/training/trainer.md", "| what | by default |", SETTING),
)
