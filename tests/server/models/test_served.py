"""AUTO over the wire: what a spec chooses, and what clients see of the points."""

from pathlib import Path
from typing import Any

import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.models.served import BYTES_PER_US, US_PER_RANDOM, Served
from logitsieve.server.rpc.codec import to_resolved_spec
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.running import MEASURED, Running, write_model
from tests.synthetic import make_hidden

Choice = tuple[str, dict[str, float]]  # a head, and its probes
DENSE_US = 300 * 24 * 4 / BYTES_PER_US


def asked(measured: Running, rows: int, k: int, **spec: object) -> Choice:
    """Head and probes of the answer to a spec as any client may send it."""
    request = pb.TopKRequest(
        model_spec=pb.ModelSpec(model="demo@2", **spec),  # type: ignore[arg-type]
        hidden_states=put(pb.Tensor(), make_hidden(rows)),
        k=k,
    )
    reply = pb.TopKResponse.FromString(measured.raw("Decoder/TopK", request.SerializeToString()))
    head = reply.answer.head
    return head.name, {name: head.knobs[name] for name in head.knobs if name == "probes"}


ONE, THREE = ("screen", {"probes": 1.0}), ("screen", {"probes": 3.0})
FULL: Choice = ("full", {})


@pytest.mark.parametrize(
    ("rows", "k", "spec", "expected"),
    [
        (1, 1, {}, THREE),
        (64, 1, {}, FULL),
        (1, 64, {}, THREE),
        (1, 1, {"head": pb.Head()}, THREE),
        (1, 1, {"head": pb.Head(name="AUTO")}, THREE),
        (1, 1, {"exact": False}, THREE),
        (1, 1, {"exact": True}, FULL),
        (1, 1, {"min_precision": 0.9}, ONE),
        (1, 7, {"min_precision": 0.91}, THREE),
        (1, 7, {"min_precision": 0.991}, FULL),
        (1, 11, {"min_precision": 0.1}, FULL),
        (1, 1, {"min_precision": 1.0}, FULL),
        (1, 1, {"head": pb.Head(name="screen")}, ONE),
        (1, 1, {"head": pb.Head(knobs={"probes": 3})}, THREE),
    ],
    ids=str,
)
def test_what_a_target_chooses(
    measured: Running, rows: int, k: int, spec: dict[str, object], expected: Choice
) -> None:
    assert asked(measured, rows, k, **spec) == expected


def test_points_as_clients_see_them(measured: Running) -> None:
    points = measured.client.model("demo@1").points
    assert [(point.head, point.rows, point.us_per_row) for point in points[:4]] == [
        ("full", 1, 9.0),
        ("full", 8, 8.0),
        ("full", 64, 3.0),
        ("screen", 1, 1.0),
    ]
    assert (points[0].proven, points[3].proven) == (True, False)
    assert points[3].knobs["probes"] == 1
    assert points[3].precision_at == {1: 0.9, 5: 0.9, 10: 0.9}
    assert (points[0].mass_kept, points[3].mass_kept) == (1.0, 0.9)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    folder = write_model(tmp_path, calibration=MEASURED)
    return Served(LocalDecoder(open_index(folder)))


def test_other_widths_are_answered_apart_and_an_engine_has_one_pace(served: Served) -> None:
    """The batcher merges requests of one point."""
    aims = [to_resolved_spec(pb.ModelSpec(log_z_width=width)) for width in (0.0, 0.1, 0.2, 0.1)]
    plain, one, other, again = (served.choose(aim, 1, 1) for aim in aims)
    assert one.engine is again.engine
    assert len({plain.engine, one.engine, other.engine}) == 3
    assert (plain.engine.normalizer, one.engine.normalizer) == ("", "full")
    assert plain.us_per_row < one.us_per_row == other.us_per_row
    one, same, other = (
        served.choose(to_resolved_spec(pb.ModelSpec(head=pb.Head(name=head))), 1, 1)
        for head in ("screen", "screen", "full")
    )
    assert one.pace is same.pace
    one.pace.pool.add(3.0)
    one.pace.pool.add(2.0)
    assert one.pace.pool.value == pytest.approx(2.8)
    assert other.pace.pool.value == 0


def test_an_estimate_is_the_measured_time_and_a_pass_over_w_for_log_z(served: Served) -> None:
    def us(rows: int, log_z: bool = False, **spec: Any) -> float:
        return served.choose(to_resolved_spec(pb.ModelSpec(**spec)), rows, 1, log_z).us_per_row

    assert us(64, exact=True) == 3.0
    assert us(9, head=pb.Head(name="screen")) == 1.0
    assert us(1, True, head=pb.Head(name="screen")) == 1.0 + DENSE_US
    assert us(64, True, head=pb.Head(name="full")) == 3.0  # finds both in one pass
    assert us(1, head=pb.Head(name="screen"), normalizer=pb.NORMALIZER_FULL) == 1.0 + DENSE_US
    assert us(1, head=pb.Head(name="screen"), normalizer=pb.NORMALIZER_CANDIDATES) == 1.0
    assert us(1, head=pb.Head(name="screen", knobs={"probes": 2})) == DENSE_US
    assert served.extra_us(300, 0) == pytest.approx(DENSE_US)
    assert served.extra_us(0, 2) == 2 * 300 * US_PER_RANDOM
