from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitsieve.api.keywords import asked_max_error, asked_precision
from logitsieve.cli import points
from logitsieve.cli.options import AsJson, IndexFolder, flag
from logitsieve.cli.output import print_files, print_json, print_table
from logitsieve.evaluation.operating_points import BEYOND, KS, k_class

if TYPE_CHECKING:
    from logitsieve.index import Index


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    min_precision: float | None = flag(
        None, "Show the points that AUTO chooses for this P@k, from 0 to 1."
    )
    exact: bool = flag(False, "Show the points that AUTO chooses for proven answers.", "--exact")
    max_error: float | None = flag(
        None,
        "Show the points that AUTO chooses for answers that are wrong with at most this chance,"
        " from 0 (a proof) to below 1.",
    )
    k: int | None = flag(
        None, "Number of answers, from 1 to V; by default each measured number.", "-k"
    )


def command(index: IndexFolder, options: InspectOptions, as_json: AsJson = False) -> None:
    """Show an index: heads and knobs, sizes of files, operating points and AUTO's choices.

    Sizes and headers are checked; `logitsieve verify` also checks digests.

    Example: logitsieve inspect models/lm/1 --min-precision 0.99
    """
    from logitsieve.heads._base.head import checked_k
    from logitsieve.index import open_index

    precision, k = asked_precision("", None, options.min_precision, options.exact), options.k
    max_error = asked_max_error(options.max_error, precision=precision)
    with open_index(index, verify="sizes") as opened:
        facts = _facts(opened)
        auto = points.auto_of(opened)
        # The index's own target ignores k.
        ks = (BEYOND,) if precision is None else (*KS, BEYOND)
        if k is not None:
            chosen = k_class(checked_k(k, opened.vocab_size))
            ks = ks if precision is None else (chosen,)
        taken = points.choices(auto, precision, ks, max_error)
        facts["auto"] = {
            "target": {f"p{k}": p for k, p in auto.target.items()},
            "min_precision": precision,
            "max_error": max_error,
            "choices": taken,
        }
        if as_json:
            print_json(facts)
            return
        _show(facts)
        points.print_points(opened)
        points.print_choices(f"AUTO, {points.goal(auto, precision, max_error)}", taken)


def _facts(index: Index) -> dict[str, Any]:
    manifest, matrix = index.manifest, index.vocab_size * index.dim * 4
    return {
        **{of: getattr(index, of) for of in ("name", "version", "digest", "vocab_size", "dim")},
        "dtype": manifest.dtype,
        "default_head": index.default_head,
        "format_version": manifest.format_version,
        "softmax_sha256": manifest.softmax_sha256,
        "vocabulary": None if manifest.vocabulary is None else manifest.vocabulary.sha256,
        "shard_of": None if manifest.shard is None else vars(manifest.shard),
        "config": dict(manifest.config),
        "seeds": dict(manifest.seeds),
        "heads": {
            name: {**vars(manifest.heads[name]), "knobs": _knobs(index, name)}
            for name in index.heads
        },
        "files": {
            entry.file: {"bytes": entry.size, "share_of_W": entry.size / matrix}
            for entry in manifest.files()
        },
        "calibration": points.without_contexts(index.measured),
    }


def _knobs(index: Index, name: str) -> dict[str, dict[str, object]]:
    head = index.head(name)
    return {knob: {"value": head.knobs[knob], **vars(of)} for knob, of in head.knob_table.items()}


def _show(facts: Mapping[str, Any]) -> None:
    plain = [
        (name, value)
        for name, value in facts.items()
        if not isinstance(value, Mapping) and name not in ("calibration", "auto")
    ]
    plain += [(f"shard_of.{name}", value) for name, value in (facts["shard_of"] or {}).items()]
    plain += [(f"config.{name}", value) for name, value in facts["config"].items()]
    plain += [(f"seed.{name}", value) for name, value in facts["seeds"].items()]
    print_table(f"{facts['name']} {facts['version']}", ["", "value"], plain)
    files = {name: file["bytes"] for name, file in facts["files"].items()}
    print_files("Files", files, facts["vocab_size"] * facts["dim"])
    knobs = [
        (head, name, knob["value"], knob["low"], knob["high"], knob["help"])
        for head, entry in facts["heads"].items()
        for name, knob in entry["knobs"].items()
    ]
    print_table("Knobs at query time", ["head", "knob", "value", "low", "high", "trades"], knobs)
