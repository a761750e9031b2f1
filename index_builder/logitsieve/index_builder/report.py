"""One self-contained HTML page about an index: its speed, precision, memory and clusters.

Shape letters: B sampled rows, D hidden size, V vocabulary, C clusters, K labels a row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from logitsieve.api.results import Bool, Float32, Float64, Int64
from logitsieve.evaluation.precision import block_means, summarize
from logitsieve.index import Index
from logitsieve.index.contents import read_contents
from logitsieve.index_builder import report_plots as plots
from logitsieve.index_builder.contexts import Source, open_contexts
from logitsieve.index_builder.report_cascade import cascade
from logitsieve.utils.environment import name_in_errors

SAMPLED = 4000  # contexts looked at, spread over all
LABELS = 5  # K: the exact top-k that a cluster's list should hold
SHOWN_CLUSTERS, SHOWN_WORDS = 12, 14
TEMPLATE = Path(__file__).with_name("report.html")

Lists = tuple[Int64, Int64]  # CSR of the screen: offsets [C+1], ids


@dataclass(frozen=True)
class ScreenSample:
    """Contexts given to the screen, their clusters, and the labels that their lists hold."""

    hidden: Float32  # [B, D]
    clusters: Int64  # [B]
    labels: Int64  # [B, K]
    covered: Bool  # [B, K]


def write_report(index: Index, out: Path | str, contexts: Source | None = None) -> None:
    """Write the page `out`; with `contexts`, the screen is measured on them too."""
    screen = read_contents(index.path).parts.get("screen")
    measured = [] if index.measured is None else _speed(index.measured)
    sections = [_identity(index), *measured, _memory(index)]
    if screen is not None:
        lists = screen["offsets"].astype(np.int64), screen["ids"].astype(np.int64)
        sample = None if contexts is None else _sample(index, screen["centroids"], lists, contexts)
        sections.append(_clusters(lists, sample))
        if sample is not None:
            sections += [*_coverage(sample), *cascade(index, sample.hidden, screen)]
        sections += _words(index, lists, sample)
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{index.name} {index.version}"),
        digest=escape(index.digest),
        sections="\n".join(sections),
    )
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with name_in_errors(out):
        out.write_text(page, encoding="utf-8")


def _identity(index: Index) -> str:
    manifest = index.manifest
    vocabulary = "none" if manifest.vocabulary is None else manifest.vocabulary.sha256
    rows = [
        ("vocabulary size V", f"{index.vocab_size:,}"),
        ("hidden size D", f"{index.dim:,}"),
        ("type of the matrix", manifest.dtype),
        ("heads", ", ".join(index.heads)),
        ("default head", index.default_head),
        ("sha256 of the vocabulary", vocabulary),
    ]
    return _table([], rows)


def _speed(calibration: Mapping[str, Any]) -> Iterator[str]:
    points, compared = calibration["points"], calibration["compared"]
    yield "<h2>Speed and precision</h2>"
    yield (
        f"<p>On {calibration['heldout_rows']:,} held-out contexts. Filled marks: one row per call; "
        "hollow: the largest batch. In brackets the one-sided lower 95 % bounds. Mass kept: the "
        "share of the probability that lies in the candidates. Coverage: the share of rows that "
        "the head did not leave to its fallback.</p>"
    )
    yield plots.speed_precision([*points, *compared])
    yield _points_table([*points, *compared])
    if names := ", ".join(dict.fromkeys(point["head"]["name"] for point in compared)):
        yield f"<p>Measured for comparison, not in the index: {escape(names)}.</p>"
    yield f"<p>Measured with: {escape(_machine(calibration['machine']))}.</p>"
    if uneven := ", ".join(dict.fromkeys(p["head"]["name"] for p in points if p["uneven"])):
        yield (
            f'<p class="warning">Precision of {escape(uneven)} varies between blocks of the '
            "held-out contexts: were the contexts of the build spread over the whole text?</p>"
        )


def _points_table(points: Sequence[Mapping[str, Any]]) -> str:
    """One row for each head and setting, with its times at every batch size."""
    settings: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for point in points:
        knobs = " ".join(f"{name}={_knob(v)}" for name, v in point["head"]["knobs"].items())
        settings.setdefault((point["head"]["name"], knobs), {})[point["rows"]] = point
    batches, ks = sorted({point["rows"] for point in points}), ("1", "5", "10")
    header = ["head", "knobs", *(f"µs per row, B={batch}" for batch in batches)]
    header += [*(f"P@{k}" for k in ks), "mass kept", "candidates", "coverage"]
    rows = []
    for (name, knobs), by_batch in settings.items():
        point = next(iter(by_batch.values()))
        us = [by_batch[b]["us_per_row"] if b in by_batch else None for b in batches]
        precision = [_precision(point["precision"].get(k)) for k in ks]
        # Earlier builders did not measure the coverage.
        facts = [point["mass_kept"], point["candidates"], point.get("coverage")]
        rows.append([name, knobs, *us, *precision, *facts])
    return f"<p>B: rows per call.</p>\n{_table(header, rows)}"


def _knob(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _machine(machine: Mapping[str, str]) -> str:
    """The processor, threads, day and versions."""
    rest = dict(machine)
    parts = [rest.pop("cpu")]
    if threads := rest.pop("threads", ""):
        parts.append(f"{threads} thread{'' if threads == '1' else 's'}")
    if date := rest.pop("date", ""):
        parts.append(f"on {date[:10]}")
    return ", ".join([*parts, *(f"{name} {version}" for name, version in rest.items())])


def _precision(measured: Mapping[str, float] | None) -> str | None:
    return None if measured is None else f"{measured['mean']:.4f} ({measured['low']:.4f})"


def _memory(index: Index) -> str:
    manifest = index.manifest
    matrix = index.vocab_size * index.dim * 4
    sizes = {entry.file: entry.size for entry in manifest.files()}
    rows = [(name, size, f"{100 * size / matrix:.2f} %") for name, size in sizes.items()]
    bars = plots.bars(list(sizes), [size / 2**20 for size in sizes.values()], "MiB")
    return f"<h2>Memory</h2>\n{bars}\n{_table(['file', 'bytes', 'of W'], rows)}"


def _sample(index: Index, centroids: np.ndarray, lists: Lists, source: Source) -> ScreenSample:
    with tempfile.TemporaryDirectory() as scratch:
        contexts = open_contexts(source, index.dim, Path(scratch))
        hidden_BD = contexts.sample(SAMPLED)
    labels_BK = index.head("exact").topk(hidden_BD, min(LABELS, index.vocab_size)).ids
    clusters_B = (hidden_BD @ centroids.T).argmax(axis=1)
    offsets, ids = lists
    members = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) * index.vocab_size + ids
    wanted = clusters_B[:, None] * index.vocab_size + labels_BK
    return ScreenSample(hidden_BD, clusters_B, labels_BK.astype(np.int64), np.isin(wanted, members))


def _clusters(lists: Lists, sample: ScreenSample | None) -> str:
    sizes = np.diff(lists[0])
    parts = [
        "<h2>Clusters</h2>",
        f"<p>{len(sizes):,} clusters; a list holds {sizes.mean():,.0f} candidates on average, "
        f"{sizes.max():,} at most.</p>",
        plots.histogram(sizes.tolist(), "candidates in a list", "clusters"),
        plots.ranked(sizes.tolist(), "cluster, by candidates", "candidates"),
    ]
    if sample is not None:
        met = np.bincount(sample.clusters, minlength=len(sizes))
        parts.append(plots.ranked(met.tolist(), "cluster, by contexts", "sampled contexts"))
        parts.append(
            f"<p>A sampled context is given {sizes[sample.clusters].mean():,.1f} candidates; "
            f"{(met == 0).sum():,} clusters met none of {len(sample.clusters):,}.</p>"
        )
    return "\n".join(parts)


def _coverage(sample: ScreenSample) -> Iterator[str]:
    share_B = sample.covered.mean(axis=1)
    blocks, coverage = block_means(share_B), summarize(share_B)
    yield "<h2>Labels in the lists</h2>"
    yield (
        f"<p>The share of the exact top-{sample.labels.shape[1]} that lies in the list of the "
        f"context's cluster, in {len(blocks)} contiguous blocks: {coverage.mean:.4f} on average, "
        f"{coverage.worst:.4f} in the worst.</p>"
    )
    if coverage.uneven:
        yield (
            f'<p class="warning">That varies: block {int(blocks.argmin()) + 1} is '
            f"{coverage.mean - coverage.worst:.3f} below the mean. The contexts that the screen "
            "was fitted on may come from a part of the text only; spread them over all of it.</p>"
        )
    yield plots.blocks(blocks.tolist(), "labels in the list")


def _words(index: Index, lists: Lists, sample: ScreenSample | None) -> Iterator[str]:
    """Words of a few clusters; those frequent in a cluster and in few other lists come first."""
    words = index.vocabulary
    if words is None:
        return
    offsets, ids = lists
    lists_V = np.bincount(ids, minlength=index.vocab_size)
    rows = []
    met_C = np.bincount([] if sample is None else sample.clusters, minlength=len(offsets) - 1)
    for cluster in np.argsort(-met_C, kind="stable")[:SHOWN_CLUSTERS]:
        listed = ids[offsets[cluster] : offsets[cluster + 1]]
        best = listed[np.argsort(-_distinction(listed, cluster, lists_V, sample), kind="stable")]
        shown = " · ".join(words[number] for number in best[:SHOWN_WORDS])
        rows.append((int(cluster), len(listed), shown))
    yield "<h2>Words of some clusters</h2>"
    yield "<p>The most distinctive words first: likely in the cluster, and in few other lists.</p>"
    yield _table(["cluster", "candidates", "words"], rows)


def _distinction(
    listed: Int64, cluster: int, lists_V: Int64, sample: ScreenSample | None
) -> Float64:
    share: Float64 | float = 1.0
    if sample is not None:
        labels = sample.labels[sample.clusters == cluster]
        counts_V = np.bincount(labels.ravel(), minlength=len(lists_V))
        share = counts_V[listed] / max(len(labels), 1)
    return np.asarray(share / lists_V[listed], np.float64)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; every cell is escaped here, and only here."""
    rows = list(rows)
    numeric = (
        [isinstance(cell, (int, float)) for cell in rows[0]] if rows else [False] * len(header)
    )

    def line(cells: Sequence[object], tag: str) -> str:
        shown = []
        for number, cell in enumerate(cells):
            kind = ' class="number"' if numeric[number] else ""
            label = f' data-label="{escape(header[number])}"' if header and tag == "td" else ""
            shown.append(f"<{tag}{kind}{label}>{escape(_text(cell))}</{tag}>")
        return f"<tr>{''.join(shown)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    return f'<div class="scroll"><table>{head}\n<tbody>{body}</tbody></table></div>'


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
