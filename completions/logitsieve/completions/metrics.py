"""Numbers of the endpoint and its engine, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from logitsieve.completions.engine import Engine


class Metrics:
    def __init__(self, engine: Engine) -> None:
        registry = self._registry = CollectorRegistry()
        prefix = "logitsieve_completions"
        self.answered = Counter(
            f"{prefix}_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(f"{prefix}_seconds", "Seconds of completions.", registry=registry)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "running": ("Prompts and continuations being decoded.", lambda: len(engine.running)),
            "waiting": ("Prompts that wait.", lambda: len(engine.waiting)),
        }
        counts: dict[str, tuple[str, Callable[[], float]]] = {
            "prompt_tokens_total": ("Tokens of prompts.", lambda: engine.prompt_tokens),
            "tokens_total": ("Tokens chosen.", lambda: engine.tokens),
            "rows_total": ("Exact logits computed.", lambda: engine.scanned),
            "drafted_total": ("Tokens read before they were chosen.", lambda: engine.drafted),
            "accepted_total": ("Of these, the ones that were chosen.", lambda: engine.accepted),
        }
        for name, (text, value) in {**gauges, **counts}.items():
            Gauge(f"{prefix}_{name}", text, registry=registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)
