"""The Markdown table of the raw numbers."""

from __future__ import annotations

from typing import Any

HEAD = (
    "softmax",
    "BLEU",
    "µs/step",
    "µs/row",
    "speed-up",
    "same as exact",
    "settled by exact log Z",
)


def markdown(results: dict[str, Any]) -> str:
    """Conditions, a table for each search, and a few translations side by side."""
    lines = [
        f"{results['machine']['cpu']}, {results['threads']} thread, V = {results['vocab_size']:,}, "
        f"D = {results['dim']}, {results['precision']}; {results['sentences']:,} sentences, "
        f"{results['batch']} at once. Speed-ups are over the faster of numpy and torch in the same "
        "run; times are of the softmax alone.",
    ]
    for label, search in results["searches"].items():
        lines += ["", f"**{label}**", "", f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
        lines += [row(name, entry) for name, entry in search["contenders"].items()]
        lines += [""] + [
            f"Over gRPC, {name}: {entry['same_as_in_process']:.1%} of {entry['sentences']} "
            f"translations as in process, {entry['us_per_step']:.0f} µs a step."
            for name, entry in search["over gRPC"].items()
        ]
    last = list(results["searches"].values())[-1]
    for shown in last["shown"]:
        lines += ["", *(f"- {name}: {text}" for name, text in shown.items())]
    return "\n".join(lines) + "\n"


def row(name: str, entry: dict[str, Any]) -> str:
    """One line of a table."""
    cells = (
        name,
        f"{entry['bleu']:.2f}",
        f"{entry['us_per_step']:.0f}",
        f"{entry['us_per_row']:.1f}",
        f"{entry['speed_up']:.1f}x",
        f"{entry['same_as_exact']:.1%}",
        f"{entry['settled_by_exact_log_z']:.1%}",
    )
    return f"| {' | '.join(cells)} |"
