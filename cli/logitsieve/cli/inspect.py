"""`logitsieve inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from logitsieve.cli.console import print_json, print_table, size
from logitsieve.cli.points import print_points
from logitsieve.index import Index, open_index


def command(
    index: Annotated[Path, typer.Argument(help="The index: a folder <name>/<version>.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what an index holds: its heads and knobs, its files, its calibration.

    Sizes and headers are checked, digests are not: that is `logitsieve verify`.

    Example: logitsieve inspect models/lm/1
    """
    with open_index(index, verify="sizes") as opened:
        facts = _facts(opened)
    if as_json:
        print_json(facts)
    else:
        _show(facts)
        if facts["calibration"] is not None:
            print_points(facts["calibration"])


def _facts(index: Index) -> dict[str, Any]:
    manifest = index.manifest
    matrix = index.vocab_size * index.dim * 4
    return {
        "name": index.name,
        "version": index.version,
        "digest": index.digest,
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "default_head": index.default_head,
        "format_version": manifest.format_version,
        "softmax_sha256": manifest.softmax_sha256,
        "vocabulary": None if manifest.vocabulary is None else manifest.vocabulary.sha256,
        "config": dict(manifest.config),
        "seeds": dict(manifest.seeds),
        "heads": {
            name: {
                "part": manifest.heads[name].part,
                "config": dict(manifest.heads[name].config),
                "knobs": _knobs(index, name),
            }
            for name in index.heads
        },
        "files": {
            entry.file: {"bytes": entry.size, "share_of_W": entry.size / matrix}
            for entry in manifest.files()
        },
        "calibration": index.measured,
    }


def _knobs(index: Index, name: str) -> dict[str, dict[str, object]]:
    head = index.head(name)
    return {knob: {"value": head.knobs[knob], **vars(of)} for knob, of in head.knob_table.items()}


def _show(facts: Mapping[str, Any]) -> None:
    plain = [
        (name, value)
        for name, value in facts.items()
        if not isinstance(value, Mapping) and name != "calibration"
    ]
    plain += [(f"config.{name}", value) for name, value in facts["config"].items()]
    plain += [(f"seed.{name}", value) for name, value in facts["seeds"].items()]
    print_table(f"{facts['name']} {facts['version']}", ["", "value"], plain)
    files = [
        (name, size(file["bytes"]), f"{100 * file['share_of_W']:.2f} %")
        for name, file in facts["files"].items()
    ]
    print_table("Files", ["file", "size", "of W"], files)
    knobs = [
        (head, name, knob["value"], knob["low"], knob["high"], knob["help"])
        for head, entry in facts["heads"].items()
        for name, knob in entry["knobs"].items()
    ]
    print_table("Knobs at query time", ["head", "knob", "value", "low", "high", "trades"], knobs)
