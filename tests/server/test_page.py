"""Examples of docs/service.md and docs/reference-log-probs.md run; its ports are the defaults."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.cli.options import read_options
from logitsieve.server import ServeConfig
from logitsieve.server.models.repository import Repository
from tests.server.running import MEASURED, Loop, Running, administered, config_for, write_model
from tests.synthetic import make_hidden

PAGE = Path(__file__).parents[2] / "docs" / "service.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)


def test_the_examples_run_in_their_order_where_two_models_are_served(
    loop: Loop, tmp_path: Path
) -> None:
    for name, version in (("demo", 3), ("lm", 1)):
        write_model(tmp_path, name, version, calibration=MEASURED)
    (tmp_path / "demo" / "aliases.json").write_text('{"canary": 3}')
    config = config_for(tmp_path)
    with administered(loop, config, Repository(config)) as served:
        write_model(tmp_path, "demo", 4)  # after the start
        code = "\n".join(EXAMPLES)
        for port, own in ((50051, served.run.server.port), (50052, served.run.server.admin_port)):
            assert f"localhost:{port}" in code
            code = code.replace(f"localhost:{port}", f"127.0.0.1:{own}")
        names = {"client": served.run.client, "hidden_states": make_hidden(10)}
        exec(compile(code, PAGE.name, "exec"), names)


def test_a_training_loop_gets_the_same_numbers_over_grpc(server: Running, models: Path) -> None:
    """The frozen model and the policy are tables of contexts; the last sequences are shorter."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    policy = torch.nn.Sequential(torch.nn.Embedding(300, 24), torch.nn.Linear(24, 300))
    ids = torch.randint(300, (4, 13))
    mask = torch.arange(12) < torch.tensor([12, 12, 9, 1])[:, None]
    names = {
        "rollouts": 2 * [(ids[:, :-1], ids[:, 1:], mask, torch.ones(4, 1))],
        "frozen": torch.nn.Embedding(300, 24),
        "policy": policy,
        "optimizer": torch.optim.SGD(policy.parameters(), lr=0.1),
    }
    page = PAGE.with_name("reference-log-probs.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
    for shown, used in (
        ("localhost:50051", server.address),
        ("models/lm/1", str(models / "other" / "1")),
        ('"lm"', '"other"'),
    ):
        code = code.replace(shown, used)
    exec(compile(code, "reference-log-probs.md", "exec"), names)
    reference: Any = names["reference"]
    rows, wanted = names["hidden_states"][mask], ids[:, 1:][mask]
    full = reference.score(rows, wanted, normalizer="full").log_probs[:, 0]
    np.testing.assert_allclose(names["fixed"][mask], full, atol=1.01e-4)
    assert (names["fixed"][~mask] == 0).all()


def test_its_file_of_options_can_be_read_and_its_ports_are_the_defaults(tmp_path: Path) -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```", TEXT, re.M | re.S)
    file = tmp_path / "serve.toml"
    file.write_text(example, encoding="utf-8")
    ServeConfig(**read_options(file, ServeConfig))
    ports = dict(re.findall(r"^\| \w+ \| (\d+) \| `--([a-z-]*port)`", TEXT, re.M))
    config = ServeConfig()
    assert len(ports) == 3
    assert all(getattr(config, ports[port].replace("-", "_")) == int(port) for port in ports)
