import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logitsieve.client import DecoderClient
from logitsieve.index import split_index
from logitsieve.ray import RayOptions
from logitsieve.server.config import ServeConfig
from tests.ray.conftest import INGRESS
from tests.server.running import config_for, lasting_port
from tests.synthetic import make_softmax, write_heads

V, D = 1500, 32


class Deployed(NamedTuple):
    """A deployment of lm@1 in two shards, with a replica each, and its client."""

    whole: Path
    models: Path
    config: ServeConfig
    client: DecoderClient

    def up(self, **changes: Any) -> Any:
        """Deploy, or again."""
        deployment = pytest.importorskip("logitsieve.ray.deployment")
        options: dict[str, Any] = {"cpus": 0.1, "serve_on": INGRESS, "patience_s": 3.0}
        options |= {"missing": "answer"}
        return deployment.deploy(self.config, RayOptions(**options | changes))

    def add(self, version: int) -> None:
        """Put another version into the folder."""
        out, softmax = self.whole / "lm" / str(version), make_softmax(V, D, version)
        whole = write_heads(out, softmax, "sketch")
        split_index(whole, self.models / "lm" / str(version), 2)

    def remove(self, version: int) -> None:
        """Take a version out of the folder."""
        shutil.rmtree(self.models / "lm" / str(version))


@pytest.fixture(scope="session")
def deployed(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    from ray import serve

    folder, port = tmp_path_factory.mktemp("ray"), lasting_port()
    ports = {"port": port, "http_port": port + 1, "admin": False, "console": False}
    config = config_for(folder / "models", **ports)
    client = DecoderClient(f"127.0.0.1:{port}", timeout_s=10.0)
    made = Deployed(folder / "whole", folder / "models", config, client)
    made.add(1)
    made.up()
    yield made
    client.close()
    serve.shutdown()
