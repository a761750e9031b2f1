from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from logitsieve.console.overview import (
    chosen_facts,
    live_facts,
    model_facts,
    overview_facts,
    points_facts,
    unloaded_versions,
)
from logitsieve.decoding import LocalDecoder
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.models.routes import Routes, Version
from tests.console.conftest import KEPT
from tests.refusals import refused
from tests.synthetic import make_hidden


def test_versions_in_every_state(routes: Routes, tmp_path: Path) -> None:
    more = routes.with_version(Version("demo", 3, error="damaged"))
    more = more.with_version(Version("demo", 4)).with_aliases("demo", {"stable": 1})
    facts = overview_facts(more, CollectorRegistry(), ready=False, unloaded=[])
    models = {model["model"]: model for model in facts["models"]}
    assert not facts["ready"]
    assert models["demo@3"]["error"] == "damaged"
    assert models["demo@4"]["state"] == "loading"
    assert models["demo@1"]["aliases"] == ["stable"]
    plain = [name for name, model in models.items() if model["plain"]]
    assert plain == ["bare@1", "demo@1"]
    assert [one["head"] for one in models["demo@1"]["auto"]] == ["screen"] * 3
    assert models["demo@1"]["target"] == {1: 0.95}
    for folder in ("demo/1", "demo/3", "demo/3.tmp", "demo/x", ".incoming/1", "new/12"):
        (tmp_path / folder).mkdir(parents=True)
    assert unloaded_versions(tmp_path, routes) == ["demo@3", "new@12"]


def test_what_a_model_can_be_asked(routes: Routes) -> None:
    facts = model_facts(routes.served("demo@1").whole.index)
    assert (facts["contexts"], facts["has_words"]) == (KEPT, True)
    [screen] = [head for head in facts["heads"] if head["name"] == "screen"]
    assert [knob["name"] for knob in screen["knobs"]] == ["probes", "escalate", "log_z_error"]
    facts = model_facts(routes.served("bare").whole.index)
    assert (facts["contexts"], facts["has_words"], facts["calibrated"]) == (0, False, False)


def test_live_counts(routes: Routes) -> None:
    metrics = Metrics()
    call = Call("TopK", answer=routes.served("demo@1").whole.topk(make_hidden(3), 2).answer)
    call.route("demo:stable", "demo", "1")
    metrics.finish(call, "OK")
    metrics.rejected["in_flight",] += 2
    facts = live_facts(metrics.registry)
    labels = {"rpc": "TopK", "model": "demo", "version": "1", "code": "OK"}
    assert facts["calls"] == [labels | {"count": 1.0}]
    assert facts["rows"][0]["count"] == 3
    assert {"reason": "in_flight", "count": 2.0} in facts["rejected"]
    assert facts["seconds"][-1] == [None, 1.0]
    assert facts["precision"] == []
    facts = live_facts(CollectorRegistry())
    assert (facts["calls"], facts["seconds"], facts["queue_rows"]) == ([], [], 0)


def test_live_precision_has_bounds_by_the_judged_ids() -> None:
    registry = CollectorRegistry()
    for name, counts in (("hits", (247, 0)), ("possible", (248, 0))):
        series = Counter(f"logitsieve_shadow_{name}", "", ("head", "k"), registry=registry)
        for k, count in zip("15", counts, strict=True):
            series.labels("screen", k).inc(count)
    few, none = live_facts(registry)["precision"]
    assert few["low"] < 0.99 < 247 / 248 < few["high"] < 1  # so a target of 0.998 may be met
    assert (none["low"], none["high"]) == (0, 1)


def test_points_and_their_frontier(demo: LocalDecoder) -> None:
    facts = points_facts(demo)
    assert [point["head"] for point in facts["points"]] == [
        *("full", "sketch", "screen", "screen", "screen")
    ]
    assert facts["batches"] == [1, 8, 64]
    assert all(point["candidates"].keys() == {1, 8, 64} for point in facts["points"])
    # Fastest first; the one with five probes is slower and less precise than another.
    assert facts["frontier"][1][1] == [2, 3, 1]
    assert facts["target"] == {1: 0.95}
    assert facts["elsewhere"] == ""
    for precision, k, field in ((2.0, 1, "min_precision"), (0.9, 0, "k")):
        with refused(field):
            chosen_facts(demo, precision, k)
    with refused("max_error"):
        chosen_facts(demo, None, 1, 1.0)
    assert {one["head"] for one in chosen_facts(demo, None, 1, 0.0)["chosen"]} == {"sketch"}


@pytest.mark.parametrize(
    ("precision", "head", "probes"),
    [(None, "screen", 3), (0.5, "screen", 1), (0.985, "screen", 3), (1.0, "sketch", None)],
)
def test_what_auto_takes(
    demo: LocalDecoder, precision: float | None, head: str, probes: int | None
) -> None:
    for chosen in chosen_facts(demo, precision, 1)["chosen"]:
        assert (chosen["head"], chosen["knobs"].get("probes")) == (head, probes)
        engine = demo.engine_for(
            {} if precision is None else {"min_precision": precision}, chosen["rows"], 1
        )
        assert (engine.head, engine.knobs) == (chosen["head"], chosen["knobs"])
        assert chosen["us_per_row"] > 0


def test_an_index_without_points(bare: LocalDecoder) -> None:
    facts = points_facts(bare)
    assert (facts["points"], facts["frontier"], facts["heldout_rows"]) == ([], {}, None)
    assert chosen_facts(bare, None, 1)["chosen"][0]["head"] == "full"
