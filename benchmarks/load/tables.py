"""The results under load as Markdown."""

from __future__ import annotations

from typing import Any

HEAD = "answers/s | p50 us | p99 us | p99.9 us | codes"


def show(results: dict[str, Any]) -> None:
    """Print everything."""
    cpus = results["cpus"]
    print(
        f"\n{results['machine']['cpu']}, V={results['vocab_size']:,} D={results['dim']} "
        f"k={results['k']}; server on cores {cpus['server']}, clients on {cpus['clients']}\n"
    )
    print(f"| rows | clients | | {HEAD} |\n|---|---|---|---|---|---|---|---|")
    for one in results["closed"]:
        for name, run in one["runs"].items():
            print(f"| {one['rows']} | {one['clients']} | {name} | {cells(run)} |")
    print(f"\n| single rows, exact | {HEAD} |\n|---|---|---|---|---|---|")
    for one in results["batching"]:
        for name, run in one["runs"].items():
            print(f"| {one['clients']} clients, {name} | {cells(run)} |")
    over = results["overload"]
    print(f"\n| {over['rows']} rows, exact | {HEAD} |\n|---|---|---|---|---|---|")
    for name, run in over["runs"].items():
        print(f"| {name} | {cells(run)} |")
    print(f"\nGoodput under overload: {over['share_of_peak']:.2f} of the peak.")


def cells(run: dict[str, Any]) -> str:
    """A run's columns."""
    us = run["us"]
    codes = ", ".join(f"{code} {count}" for code, count in sorted(run["codes"].items()))
    return (
        f"{run['good_per_s']:.0f} | {us['p50']:.0f} | {us['p99']:.0f} | {us['p99.9']:.0f} | {codes}"
    )
