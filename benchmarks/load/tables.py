"""The results under load as Markdown."""

from typing import Any

HEAD = "answers/s | p50 us | p99 us | p99.9 us | refused, p99 us | codes"
RIGHT = {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}


def markdown(results: dict[str, Any]) -> str:
    """Conditions, and a table for each part."""
    cpus = results["cpus"]
    lines = [
        f"{results['machine']['cpu']}, V = {results['vocab_size']:,}, D = {results['dim']}, "
        f"k = {results['k']}, float32; server on cores {cpus['server']} with {results['threads']} "
        f"thread, clients on cores {cpus['clients']}; {results['seconds']:g} s each.",
        "",
        f"| rows | clients | | {HEAD} |",
        "|---" * 9 + "|",
    ]
    for one in results["closed"]:
        for name, run in one["runs"].items():
            lines.append(f"| {one['rows']} | {one['clients']} | {name} | {cells(run)} |")
    lines += ["", f"| single rows, exact | {HEAD} |", "|---" * 7 + "|"]
    for one in results["batching"]:
        for name, run in one["runs"].items():
            lines.append(f"| {one['clients']} clients, {name} | {cells(run)} |")
    over = results["overload"]
    lines += ["", f"| {over['rows']} rows, exact | {HEAD} |", "|---" * 7 + "|"]
    lines += [f"| {name} | {cells(run)} |" for name, run in over["runs"].items()]
    wrong = {code for run in over["runs"].values() for code in run["codes"]} - RIGHT
    codes = f"refused by other codes: {', '.join(sorted(wrong))}" if wrong else "all codes right"
    lines += ["", f"Goodput under overload: {over['share_of_peak']:.2f} of the peak; {codes}."]
    for part, whose in (("deadlines", "ours"), ("others", "others")):
        if part in results:
            lines += ["", f"| single rows, clients like {whose} | {HEAD} |", "|---" * 7 + "|"]
            lines += [f"| {name} | {cells(run)} |" for name, run in results[part]["runs"].items()]
    return "\n".join(lines) + "\n"


def cells(run: dict[str, Any]) -> str:
    us = run["us"]
    codes = ", ".join(f"{code} {count}" for code, count in sorted(run["codes"].items()))
    refused = run["refused_us"]["p99"]
    return (
        f"{run['good_per_s']:.0f} | {us['p50']:.0f} | {us['p99']:.0f} | {us['p99.9']:.0f} "
        f"| {refused:.0f} | {codes}"
    )
