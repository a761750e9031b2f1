import pytest

from logitsieve.console.points import chosen_facts, points_facts
from logitsieve.decoding import LocalDecoder
from tests.refusals import refused


def test_points_and_their_frontier(demo: LocalDecoder) -> None:
    facts = points_facts(demo)
    assert [point["head"] for point in facts["points"]] == [
        *("exact", "certified", "screen", "screen", "screen")
    ]
    assert facts["batches"] == [1, 8, 64]
    # Fastest first; the one with five probes is slower and less precise than another.
    assert facts["frontier"][1][1] == [2, 3, 1]
    assert facts["target"] == {1: 0.95}
    assert facts["elsewhere"] == ""
    for precision, k, field in ((2.0, 1, "min_precision"), (0.9, 0, "k")):
        with refused(field):
            chosen_facts(demo, precision, k)


@pytest.mark.parametrize(
    ("precision", "head", "probes"),
    [(None, "screen", 3), (0.5, "screen", 1), (0.985, "screen", 3), (1.0, "certified", None)],
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
    assert chosen_facts(bare, None, 1)["chosen"][0]["head"] == "exact"
