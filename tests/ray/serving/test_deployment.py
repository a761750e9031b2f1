"""A folder of models on Ray: our own server in front, shards behind it, and what may fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.client import AdminClient, DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.config import ServeConfig
from tests.ray.conftest import INGRESS
from tests.ray.serving.conftest import Indexes
from tests.server.running import lasting_port
from tests.sharded import D
from tests.synthetic import make_hidden

pytestmark = pytest.mark.ray

WAIT_S = 60.0


class Deployed:
    """A deployment with two replicas of each shard, and its clients."""

    def __init__(self, models: Path, kernel_cache: Path) -> None:
        first = lasting_port()
        self.models = models
        self.config = ServeConfig(
            port=first,
            metrics_port=first + 1,
            admin_port=first + 2,
            kernel_cache=kernel_cache,
            shadow_share=0.0,
            reflection=True,
        )
        self.up()
        self.client = DecoderClient(f"127.0.0.1:{first}", timeout_s=10.0)
        self.admin = AdminClient(f"127.0.0.1:{first + 2}", timeout_s=WAIT_S)

    def up(self, **changes: Any) -> Any:
        from logitsieve.ray.serving.deployment import deploy

        options: dict[str, Any] = {"replicas": 2, "cpus": 0.1, "serve_on": INGRESS}
        return deploy(self.models, server=self.config, missing="answer", **options | changes)

    def processes(self, name: str) -> list[int]:
        """Process ids of the actors whose class has this name, by Ray's own list."""
        from ray.util.state import list_actors

        actors = list_actors(filters=[("state", "=", "ALIVE")], limit=1000)
        return [int(each.pid) for each in actors if name in (each.class_name, each.name)]


@pytest.fixture(scope="module")
def deployed(
    served: None, indexes: Indexes, kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    models = tmp_path_factory.mktemp("deployed") / "models"
    shutil.copytree(indexes.models, models)
    made = Deployed(models, kernel_cache)
    yield made
    made.client.close()
    made.admin.close()


@pytest.fixture(scope="module")
def whole(indexes: Indexes, kernel_cache: Path) -> LocalDecoder:
    return LocalDecoder(open_index(indexes.whole / "lm" / "1", kernel_cache=kernel_cache))


def until(true: Callable[[], bool]) -> None:
    end = monotonic() + WAIT_S
    while not true():
        assert monotonic() < end
        sleep(0.1)


def test_clients_get_the_answers_of_one_process(deployed: Deployed, whole: LocalDecoder) -> None:
    hidden = make_hidden(20, D)
    for head in ("exact", "certified", "screen"):
        here, there = whole.topk(hidden, 5, head=head), deployed.client.topk(hidden, 5, head=head)
        np.testing.assert_array_equal(here.ids, there.ids)
        np.testing.assert_array_equal(here.logits, there.logits)
    bad = hidden.copy()
    bad[2, 3] = np.nan
    with pytest.raises(InvalidRequest, match="hidden"):
        deployed.client.topk(bad, 5)
    info = deployed.client.model("lm")
    assert (info.version, info.state) == ("1", "available")
