from pathlib import Path

import numpy as np
import pytest

from logitsieve.server.metrics import Metrics
from logitsieve.server.models.routes import Version
from logitsieve.server.models.served import WINDOW, Served
from logitsieve.server.precision.precision_metrics import PrecisionMetrics, shares
from logitsieve.server.precision.shadow import judge
from tests.server.materials import TARGET_PRECISION, contexts
from tests.server.precision.test_shadow import AUTO, SCREEN, open_served, sampled
from tests.server.test_metrics import samples


def feed(
    live: PrecisionMetrics, served: Served, domain: int, rows: int, k: int = 5, seed: int = 2
) -> None:
    for row in contexts(domain, rows, seed):
        live.judged(judge(sampled(served, row[None], k)))


def watched(served: Served) -> tuple[PrecisionMetrics, Metrics]:
    metrics = Metrics()
    return PrecisionMetrics(metrics.registry, lambda: [Version("demo", 1, served)]), metrics


def test_auto_leaves_a_point_that_drifted_for_a_proof(
    tmp_path: Path, kernel_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = open_served(tmp_path, kernel_cache)
    live, metrics = watched(served)
    feed(live, served, domain=1, rows=200)
    assert served.choose(AUTO, 1, 5).engine.knobs["probes"] == 1
    assert samples(metrics, "logitsieve_guard_level") == {("demo", "1"): 0}

    feed(live, served, domain=2, rows=3 * WINDOW)
    assert served.choose(AUTO, 1, 5).engine.head == "exact"
    assert samples(metrics, "logitsieve_guard_level") == {("demo", "1"): 1}
    assert "demo@1: AUTO leaves screen" in caplog.text

    feed(live, served, domain=1, rows=200)  # it returns when the version is loaded again
    assert served.choose(AUTO, 1, 5).engine.head == "exact"
    loaded = open_served(tmp_path / "again", kernel_cache)
    assert loaded.choose(AUTO, 1, 5).engine.knobs["probes"] == 1


def test_what_is_named_is_counted_and_not_held_against_auto(
    tmp_path: Path, kernel_cache: Path
) -> None:
    served = open_served(tmp_path, kernel_cache)
    live, metrics = watched(served)
    served.choose(AUTO, 1, 5)
    for row in contexts(2, 300):
        live.judged(judge(sampled(served, row[None], 5, SCREEN)))
    assert samples(metrics, "logitsieve_shadow_rows_total") == {("screen", "demo"): 300}
    assert samples(metrics, "logitsieve_auto_missed_total") == {}
    assert served.choose(AUTO, 1, 5).engine.head == "screen"


def test_the_series_of_a_judged_row(tmp_path: Path, kernel_cache: Path) -> None:
    served = open_served(tmp_path, kernel_cache)
    live, metrics = watched(served)
    feed(live, served, domain=1, rows=3, k=7)
    live.lost("demo", "queue_full")
    assert samples(metrics, "logitsieve_target_precision") == {
        (k[1:], "demo", "1"): precision for k, precision in TARGET_PRECISION.items()
    }
    by_k = samples(metrics, "logitsieve_shadow_possible_total")
    assert by_k == {("screen", "1", "demo"): 3, ("screen", "5", "demo"): 15}
    allowed = samples(metrics, "logitsieve_auto_allowed_total")
    np.testing.assert_allclose(allowed["1", "demo"], 3 * (1 - TARGET_PRECISION["p1"]))
    np.testing.assert_allclose(allowed["5", "demo"], 15 * (1 - TARGET_PRECISION["p5"]))
    assert samples(metrics, "logitsieve_shadow_lost_rows_total") == {("demo", "queue_full"): 1}


def test_of_two_ks_in_a_class_the_larger_counts() -> None:
    assert shares({1: 1, 3: 1, 4: 2, 5: 4}) == {1: 1.0, 5: 0.8}
