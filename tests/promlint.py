"""What `promtool check metrics` refuses in a text of metrics."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

OF_TOTALS = ("_count", "_sum", "_bucket")


def complaints(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            if name.endswith("_total") != (kind == "counter"):
                yield f"{name} is a {kind}"
            if name.endswith(OF_TOTALS) and not name.endswith("_created"):
                yield f"{name} is named like a part of a histogram"
    for family in text_string_to_metric_families(text):
        if not family.documentation:
            yield f"{family.name} has no help"
