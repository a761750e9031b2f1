"""A folder of models on Ray: our own server in front, shards behind it, and what may fail."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from logitsieve.api.errors import InvalidRequest, ModelNotFound, Unavailable
from logitsieve.cli.app import app
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.ray.serving.conftest import D, Deployed, V
from tests.synthetic import make_hidden

pytestmark = pytest.mark.ray

WAIT_S = 90.0
REPLICA = "ServeReplica:logitsieve-shard"
HIDDEN = make_hidden(20, D)
SEEDS = np.arange(20, dtype=np.uint64)


@pytest.fixture(scope="module")
def whole(deployed: Deployed) -> LocalDecoder:
    return LocalDecoder(open_index(deployed.whole / "lm" / "1"))


def processes(name: str) -> list[int]:
    """Ids of the processes of this Ray, a child of this process, whose title begins so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
            if title.startswith(f"ray::{name}") and os.getpid() in ancestors(int(folder.name)):
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return sorted(found)


def ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        process = int(stat.rpartition(")")[2].split()[1])
        found.append(process)
    return found


def until(true: Callable[[], bool]) -> None:
    end = monotonic() + WAIT_S
    while not true():
        assert monotonic() < end
        sleep(0.1)


def proven(deployed: Deployed, whole: LocalDecoder) -> bool:
    """Whether all shards answer again; until then an answer says which rows it lacks."""
    try:
        reply = deployed.client.topk(HIDDEN[:1], 5)
    except Unavailable:
        return False
    right = np.array_equal(reply.ids, whole.topk(HIDDEN[:1], 5).ids)
    assert right or reply.answer.rows_missing
    return bool(reply.answer.proven[0])


def test_clients_get_the_answers_of_one_index(deployed: Deployed, whole: LocalDecoder) -> None:
    client = deployed.client
    for head in ("full", "sketch"):
        here, there = whole.topk(HIDDEN, 5, head=head), client.topk(HIDDEN, 5, head=head)
        np.testing.assert_equal(there[:2], here[:2])
        assert (there.answer.head, there.answer.version) == (head, "1")
    how: dict[str, Any] = {"seeds": SEEDS, "top_k": 100, "top_p": 0.9}
    drawn = client.sample(HIDDEN, 2, **how)
    np.testing.assert_array_equal(drawn.ids, whole.sample(HIDDEN, 2, **how).ids)
    token_ids = here.ids[:, :2]
    scored = client.score(HIDDEN, token_ids, normalizer="full").log_probs
    right = whole.score(HIDDEN, token_ids, normalizer="full").log_probs
    np.testing.assert_allclose(scored, right, atol=1e-5)
    bad = HIDDEN.copy()
    bad[2, 3] = np.nan
    with pytest.raises(InvalidRequest, match="hidden_states"):
        client.topk(bad, 5)


def test_the_status_shows_ingresses_and_versions(deployed: Deployed) -> None:
    shown = CliRunner().invoke(app, ["ray", "status", "--json"])
    assert shown.exit_code == 0, shown.output
    facts = json.loads(shown.stdout)
    [ingress] = facts["ingresses"]
    assert (ingress["name"], ingress["port"]) == ("ingress-1", deployed.config.port)
    assert [(each["name"], each["state"]) for each in ingress["versions"]] == [("lm", "available")]
    assert "lm@1" in CliRunner().invoke(app, ["ray", "status"]).stdout


def test_other_options_are_refused_by_name(deployed: Deployed) -> None:
    with pytest.raises(InvalidRequest, match="logitsieve ray down"):
        deployed.up(patience_s=9.0)
    with pytest.raises(InvalidRequest, match="serve_on: got 'nowhere'"):
        deployed.up(serve_on="nowhere")


def test_a_killed_replica_comes_back(deployed: Deployed, whole: LocalDecoder) -> None:
    killed = processes(REPLICA)[-1]
    os.kill(killed, signal.SIGKILL)
    until(lambda: proven(deployed, whole))
    assert killed not in processes(REPLICA)


def test_a_request_is_answered_without_a_shard(deployed: Deployed, whole: LocalDecoder) -> None:
    stopped = processes(REPLICA)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        reply = deployed.client.topk(HIDDEN, 5)
    finally:
        os.kill(stopped, signal.SIGCONT)
    [missing] = reply.answer.rows_missing
    assert missing in ((0, 768), (768, V - 768), (0, 512), (512, V - 512))
    assert not reply.answer.proven.any()
    assert not ((reply.ids >= missing.first) & (reply.ids < missing.first + missing.rows)).any()
    until(lambda: proven(deployed, whole))


def test_a_killed_ingress_listens_there_again(deployed: Deployed, whole: LocalDecoder) -> None:
    [process] = processes("Ingress")
    os.kill(process, signal.SIGKILL)
    until(lambda: proven(deployed, whole))
    assert processes("Ingress") != [process]


def test_up_follows_the_folder_and_writes_nothing(deployed: Deployed) -> None:
    aliases, client = deployed.models / "lm" / "aliases.json", deployed.client
    deployed.add(2)
    aliases.write_text('{"canary": 2, "stable": 1}', encoding="utf-8")
    files = sorted(deployed.models.rglob("*"))
    deployed.up()
    reply = client.topk(HIDDEN, 5, model="lm:canary")  # at once, by all shards
    second = LocalDecoder(open_index(deployed.whole / "lm" / "2"))
    np.testing.assert_array_equal(reply.ids, second.topk(HIDDEN, 5).ids)
    assert (reply.answer.version, reply.answer.rows_missing) == ("2", ())
    assert client.topk(HIDDEN, 5, model="lm").answer.version == "1"
    assert sorted(deployed.models.rglob("*")) == files

    deployed.add(3)
    matrix = next(deployed.models.glob("lm/3/shards/2/*.safetensors"))
    matrix.write_bytes(matrix.read_bytes()[:-8])
    with pytest.raises(Unavailable, match="lm@3"):
        deployed.up()
    assert client.model("lm@3").state == "failed"
    assert client.topk(HIDDEN, 5, model="lm@2").answer.version == "2"

    aliases.write_text('{"stable": 1}', encoding="utf-8")
    deployed.remove(2)
    deployed.remove(3)
    status = deployed.up()
    assert [v.number for v in status["ingress-1"].versions] == [1]
    with pytest.raises(ModelNotFound, match="canary"):
        client.topk(HIDDEN, 5, model="lm:canary")
    assert {name.split("-of-")[0][-4:] for name in running_shards()} == {"-1-1", "-1-2"}


def running_shards() -> list[str]:
    from ray import serve

    apps = serve.status().applications
    return [name for name, each in apps.items() if each.status != "DELETING"]
