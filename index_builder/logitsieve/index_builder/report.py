"""One self-contained HTML page about an index: how fast, how right, and what its clusters hold.

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
from logitsieve.evaluation.confidence import block_means, summarize
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
class Sample:
    """Contexts met by the screen: where they go, and which labels their lists hold."""

    hidden: Float32  # [B, D]
    clusters: Int64  # [B]
    labels: Int64  # [B, K]
    covered: Bool  # [B, K]


def write_report(index: Index, out: Path | str, contexts: Source | None = None) -> None:
    """Write the page `out`; with `contexts`, how the screen does on them is measured too."""
    screen = read_contents(index.path).parts.get("screen")
    sections = [_identity(index), *_measured(index), _memory(index)]
    if screen is not None:
        lists = screen["offsets"].astype(np.int64), screen["ids"].astype(np.int64)
        sample = None if contexts is None else _sample(index, screen["centroids"], lists, contexts)
        sections += [_clusters(lists, sample), *_coverage(sample)]
        if sample is not None:
            sections += cascade(index, sample.hidden, screen)
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
        ("vocabulary", vocabulary),
    ]
    return _table([], rows)


def _measured(index: Index) -> list[str]:
    return [] if index.measured is None else list(_speed(index.measured))


def _speed(calibration: Mapping[str, Any]) -> Iterator[str]:
    points, compared = calibration["points"], calibration["compared"]
    machine = ", ".join(f"{name} {value}" for name, value in calibration["machine"].items())
    yield "<h2>Speed and precision</h2>"
    yield (
        f"<p>On {calibration['heldout_rows']:,} held-out contexts. B: rows a call. Filled: 1; "
        "hollow: 64. In brackets the one-sided lower 95 % bounds. Coverage: the share that the "
        "head did not leave to its fallback.</p>"
    )
    yield plots.speed_precision([*points, *compared])
    ks = ("1", "5", "10")
    header = ["head", "knobs", "B", "µs a row", *(f"P@{k}" for k in ks)]
    rows = [
        (
            point["head"]["name"],
            " ".join(f"{name}={value:g}" for name, value in point["head"]["knobs"].items()),
            point["rows"],
            point["us_per_row"],
            *(_precision(point["precision"].get(k)) for k in ks),
            point["mass_kept"],
            point["candidates"],
            point.get("coverage"),  # earlier builders did not measure it
        )
        for point in [*points, *compared]
    ]
    yield _table([*header, "mass kept", "candidates", "coverage"], rows)
    if names := ", ".join(dict.fromkeys(point["head"]["name"] for point in compared)):
        yield f"<p>Measured for comparison, not in the index: {escape(names)}.</p>"
    yield f"<p>Measured with: {escape(machine)}.</p>"
    if uneven := ", ".join(dict.fromkeys(p["head"]["name"] for p in points if p["uneven"])):
        yield (
            f'<p class="warning">Precision of {escape(uneven)} varies between blocks of the '
            "held-out contexts: were the contexts of the build spread over the whole text?</p>"
        )


def _precision(found: Mapping[str, float] | None) -> str | None:
    return None if found is None else f"{found['mean']:.4f} ({found['low']:.4f})"


def _memory(index: Index) -> str:
    manifest = index.manifest
    matrix = index.vocab_size * index.dim * 4
    sizes = {entry.file: entry.size for entry in manifest.files()}
    rows = [(name, size, f"{100 * size / matrix:.2f} %") for name, size in sizes.items()]
    bars = plots.bars(list(sizes), [size / 2**20 for size in sizes.values()], "MiB")
    return f"<h2>Memory</h2>\n{bars}\n{_table(['file', 'bytes', 'of W'], rows)}"


def _sample(index: Index, centroids: np.ndarray, lists: Lists, source: Source) -> Sample:
    with tempfile.TemporaryDirectory() as scratch:
        contexts = open_contexts(source, index.dim, Path(scratch))
        hidden_BD = contexts.sample(SAMPLED)
    labels_BK = index.head("exact").topk(hidden_BD, min(LABELS, index.vocab_size)).ids
    clusters_B = (hidden_BD @ centroids.T).argmax(axis=1)
    offsets, ids = lists
    members = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) * index.vocab_size + ids
    wanted = clusters_B[:, None] * index.vocab_size + labels_BK
    return Sample(hidden_BD, clusters_B, labels_BK.astype(np.int64), np.isin(wanted, members))


def _clusters(lists: Lists, sample: Sample | None) -> str:
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


def _coverage(sample: Sample | None) -> Iterator[str]:
    if sample is None:
        return
    share_B = sample.covered.mean(axis=1)
    blocks, found = block_means(share_B), summarize(share_B)
    yield "<h2>Labels in the lists</h2>"
    yield (
        f"<p>The share of the exact top-{sample.labels.shape[1]} that lies in the list of the "
        f"context's cluster, in {len(blocks)} contiguous blocks: {found.mean:.4f} on average, "
        f"{found.worst:.4f} in the worst.</p>"
    )
    if found.uneven:
        yield (
            f'<p class="warning">That varies: block {int(blocks.argmin()) + 1} is '
            f"{found.mean - found.worst:.3f} below the mean. The contexts that the screen was "
            "fitted on may come from a part of the text only; spread them over all of it.</p>"
        )
    yield plots.blocks(blocks.tolist(), "labels in the list")


def _words(index: Index, lists: Lists, sample: Sample | None) -> Iterator[str]:
    """Words of a few clusters, those first that are frequent here and in few other lists."""
    words = index.vocabulary
    if words is None:
        return
    offsets, ids = lists
    lists_V = np.bincount(ids, minlength=index.vocab_size)
    rows = []
    for cluster in _most_met(len(offsets) - 1, sample)[:SHOWN_CLUSTERS]:
        own = ids[offsets[cluster] : offsets[cluster + 1]]
        best = own[np.argsort(-_distinction(own, cluster, lists_V, sample), kind="stable")]
        shown = " · ".join(words[number] for number in best[:SHOWN_WORDS])
        rows.append((int(cluster), len(own), shown))
    yield "<h2>Words of some clusters</h2>"
    yield "<p>Distinctive words first: likely here, and in few other lists.</p>"
    yield _table(["cluster", "candidates", "words"], rows)


def _most_met(clusters: int, sample: Sample | None) -> Int64:
    if sample is None:
        return np.arange(clusters)
    return np.argsort(-np.bincount(sample.clusters, minlength=clusters), kind="stable")


def _distinction(own: Int64, cluster: int, lists_V: Int64, sample: Sample | None) -> Float64:
    share: Float64 | float = 1.0
    if sample is not None:
        here = sample.labels[sample.clusters == cluster]
        counts_V = np.bincount(here.ravel(), minlength=len(lists_V))
        share = counts_V[own] / max(len(here), 1)
    return np.asarray(share / lists_V[own], np.float64)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; every cell is escaped here, and only here."""
    rows = list(rows)
    numeric = [isinstance(cell, (int, float)) for cell in rows[0]] if rows else []

    def line(cells: Sequence[object], tag: str) -> str:
        shown = [
            f'<{tag} class="number">{escape(_text(cell))}</{tag}>'
            if number
            else f"<{tag}>{escape(_text(cell))}</{tag}>"
            for cell, number in zip(cells, numeric, strict=True)
        ]
        return f"<tr>{''.join(shown)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    head = line(header, "th") if header else ""
    return f'<div class="scroll"><table>{head}\n{body}</table></div>'


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
