from __future__ import annotations

from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest

pytestmark = pytest.mark.ray


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"replicas": 0}, "replicas: got 0"),
        ({"replicas": 3, "autoscale": 2}, "autoscale: got 2"),
        ({"cpus": -1.0}, "cpus: got -1"),
        ({"threads": 0}, "threads: got 0"),
    ],
)
def test_options_of_shards(options: dict[str, Any], reason: str) -> None:
    made = pytest.importorskip("logitsieve.ray.serving.shards")
    with pytest.raises(InvalidRequest, match=reason):
        made.ShardOptions(**options)
    scaled = made.ShardOptions(replicas=2, autoscale=5, threads=3).number["autoscaling_config"]
    assert (scaled["min_replicas"], scaled["max_replicas"]) == (2, 5)
    assert made.ShardOptions(replicas=2).number == {"num_replicas": 2}
