"""A Markdown table shaped like Table 2 of Chen et al. 2019, of one dataset's raw numbers.

For each method two settings: the fastest with P@1 >= 0.98, and the most precise one (P@1 + P@5, the
faster of equals). Speed-ups are over the fastest exact float32 search of the same run and mode and,
in parentheses, over the fastest dense head of fewer bits that has P@1 >= 0.98.
"""

from collections.abc import Sequence

from benchmarks.race.points import ASKED, COLD, FLOAT32, WARM, Race, Record, Time, chosen_by

TIMES = {WARM: "", COLD: "cold "}  # fields of a point, and their headings
Times = dict[tuple[str, str], Time]  # by mode and field


def markdown(results: Record) -> str:
    each, modes = Race(results), results["modes"]
    times = list(TIMES) if results.get("cleared_bytes") else [WARM]
    compared = [(mode, field) for field in times for mode in modes]
    baselines: Times = {key: found for key in compared if (found := each.exact(*key))}
    narrow: Times = {key: found for key in compared if (found := each.narrow(*key))}
    if not baselines:
        others = ", ".join(FLOAT32)
        raise ValueError(f"none of {others} took part: there is nothing to compare with")
    head = ["method", "kind", *(f"{TIMES[field]}speed-up {mode}" for mode, field in compared)]
    head += ["P@1", "P@5", *(f"{TIMES[field]}µs/row {modes[0]}" for field in times)]
    head += ["memory beyond W", "build s", "setting"]
    lines = [about(results, baselines, narrow), "", "| " + " | ".join(head) + " |"]
    lines.append("|---" * len(head) + "|")
    for entry in (entry for method in each.methods for entry in chosen(each, method)):
        faster = (
            speed_ups(entry[field][mode]["median"], exact, narrow.get((mode, field)))
            for (mode, field), exact in baselines.items()
        )
        us = (f"{entry[field][modes[0]]['median']:.2f}" for field in times)
        cells = [entry["method"], entry["kind"], *faster]
        cells += [f"{entry['p1']:.4f}", f"{entry['p5']:.4f}", *us]
        cells += [f"{entry['bytes_beyond_w'] / results['weight_bytes']:.1%}"]
        cells += [f"{entry['build_seconds']:.0f}", setting(entry)]
        lines.append("| " + " | ".join(cells) + " |")
    if statistics := results.get("statistics_beside_real"):  # of a synthetic softmax
        lines += ["", "```", *statistics, "```"]
    return "\n".join(lines) + "\n"


def about(results: Record, baselines: Times, narrow: Times) -> str:
    machine, cleared = results["machine"], results.get("cleared_bytes", 0)
    exact = "; ".join(named(key, time) for key, time in baselines.items())
    fewer = "; ".join(
        f"{named(key, time)}, P@1 {time.p1:.4f}, P@5 {time.p5:.4f}" for key, time in narrow.items()
    )
    quantised = f" In parentheses over the best of fewer bits: {fewer}." * bool(fewer)
    cold = f" Cold: {cleared / 1e6:.0f} MB pass through the cache before a call." * bool(cleared)
    used = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    return (
        f"**{results['data']}**: {Race(results).shape}, "
        f"k = {results['k']}. {results['provenance']}.\n\n"
        f"{machine['cpu']}, one core reads {machine['read_GBps']['L3']:.0f} GB/s from L3 and "
        f"{machine['read_GBps']['DRAM']:.0f} from DRAM. P@1 and P@5 on "
        f"{results['judged_contexts']:,} contexts, spread over those that judge. "
        f"The best exact float32, which speed-ups are over: {exact}.{quantised} Two rows a "
        f"method: its fastest setting with P@1 >= {ASKED} (where it has one) and its most precise"
        f"{', chosen on as many other contexts' * ('chosen_by' in results['points'][0])}."
        f"{cold} {used}."
    )


def named(key: tuple[str, str], time: Time) -> str:
    return f"{TIMES[key[1]]}{key[0]}: {time.method}, {time.us:.1f} µs"


def speed_ups(us: float, exact: Time, narrow: Time | None) -> str:
    """Render "12.0x", or "12.0x (4.0x)" where a quantised head took part."""
    return f"{exact.us / us:.1f}x" + (f" ({narrow.us / us:.1f}x)" if narrow else "")


def chosen(each: Race, method: str) -> Sequence[Record]:
    """One or two of the method's settings."""
    first, own = each.results["modes"][0], each.of(method)

    def us(entry: Record) -> float:
        return float(entry[WARM][first]["median"])

    def precision(entry: Record) -> float:
        return float(chosen_by(entry)["p1"] + chosen_by(entry)["p5"])

    enough = [entry for entry in own if chosen_by(entry)["p1"] >= ASKED]
    precise = max(own, key=lambda entry: (precision(entry), -us(entry)))
    fastest = min(enough, key=us) if enough else precise
    return [fastest] if fastest is precise else [fastest, precise]


def setting(entry: Record) -> str:
    """Build and query knobs in words."""
    knobs = {**entry["built"], **entry["knobs"]}
    return ", ".join(f"{name} {value:g}" for name, value in knobs.items())
