"""A folder of models on Ray: our own server in front, shards behind it, and what may fail."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import urllib.request
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest, Unavailable
from logitsieve.client import DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index, split_index
from tests.ray.serving.conftest import Indexes, write_lm
from tests.ray.serving.running import REPLICA, WAIT_S, Deployed, Load, processes, until
from tests.sharded import D, V
from tests.synthetic import make_hidden

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def whole(indexes: Indexes, kernel_cache: Path) -> LocalDecoder:
    return LocalDecoder(open_index(indexes.whole / "lm" / "1", kernel_cache=kernel_cache))


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


def test_the_metrics_name_shards_and_replicas(deployed: Deployed) -> None:
    deployed.client.topk(make_hidden(1, D), 5)
    url = f"http://127.0.0.1:{deployed.config.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as page:
        text = page.read().decode()
    for shard in (1, 2):
        labels = f'model="lm",shard="{shard}",version="1"'
        assert f"logitsieve_shard_seconds_count{{{labels}}}" in text
        assert 'logitsieve_shard_calls_total{model="lm",replica="' in text


def test_other_options_are_refused_by_name(deployed: Deployed) -> None:
    with pytest.raises(InvalidRequest, match="logitsieve ray down"):
        deployed.up(patience_s=9.0)
    with pytest.raises(InvalidRequest, match="serve_on: got 'nowhere'"):
        deployed.up(serve_on="nowhere")


def test_one_replica_killed_gives_no_wrong_answer(deployed: Deployed, whole: LocalDecoder) -> None:
    load = Load(deployed, whole)
    until(lambda: load.answered > 20)
    killed = processes(REPLICA)[-1]
    os.kill(killed, signal.SIGKILL)
    until(lambda: load.unproven > 0 or len(set(processes(REPLICA)) - {killed}) == 2)
    done = load.answered
    until(lambda: load.answered > done + 20)
    load.stop()
    assert load.wrong == 0
    assert load.failed == []
    until(lambda: bool(deployed.client.topk(make_hidden(1, D), 5).answer.exact[0]))


def test_a_slow_shard_is_left_out_within_the_deadline(
    deployed: Deployed, whole: LocalDecoder
) -> None:
    hidden, stopped = make_hidden(1, D), processes(REPLICA)[0]
    address = f"127.0.0.1:{deployed.config.port}"
    os.kill(stopped, signal.SIGSTOP)
    try:
        with DecoderClient(address, timeout_s=3.0) as client:
            began = monotonic()
            reply = client.topk(hidden, 5, head="exact")
            assert monotonic() - began < 3.0
            [missing] = reply.answer.rows_missing
            assert missing in ((0, 768), (768, V - 768), (0, 1024), (1024, V - 1024))
            within = (reply.ids >= missing.first) & (reply.ids < missing.first + missing.rows)
            assert not within.any()
            right = whole.topk(hidden, 5, head="exact").ids
            assert not reply.answer.exact[0] or np.array_equal(reply.ids, right)
    finally:
        os.kill(stopped, signal.SIGCONT)
    until(lambda: not deployed.client.topk(hidden, 5).answer.rows_missing)


def test_more_replicas_come_without_a_failed_call(deployed: Deployed, whole: LocalDecoder) -> None:
    load = Load(deployed, whole)
    deployed.up(replicas=2)
    load.stop()
    assert load.answered
    assert (load.failed, load.wrong) == ([], 0)
    assert len(processes(REPLICA)) == 4


def test_a_killed_replica_fails_no_call_where_there_are_two(
    deployed: Deployed, whole: LocalDecoder
) -> None:
    load = Load(deployed, whole)
    until(lambda: load.answered > 20)
    before = processes(REPLICA)
    assert len(before) == 4
    os.kill(before[0], signal.SIGKILL)
    asked = load.answered
    until(lambda: load.answered > asked + 100)
    until(lambda: len(set(processes(REPLICA)) - {before[0]}) == 4)
    load.stop()
    assert load.failed == []
    assert (load.wrong, load.unproven) == (0, 0)


def test_a_killed_ingress_listens_on_its_port_again(
    deployed: Deployed, whole: LocalDecoder
) -> None:
    [process] = processes("Ingress")
    os.kill(process, signal.SIGKILL)
    hidden = make_hidden(1, D)

    def answers() -> bool:
        try:
            reply = deployed.client.topk(hidden, 5)
        except Unavailable:
            return False
        np.testing.assert_array_equal(reply.ids, whole.topk(hidden, 5).ids)
        return True

    until(answers)
    assert processes("Ingress") != [process]


def test_a_new_version_answers_when_all_its_shards_do(
    deployed: Deployed, indexes: Indexes, tmp_path: Path, kernel_cache: Path
) -> None:
    write_lm(tmp_path / "lm" / "2", tied=False)
    contexts = make_hidden(200, D)
    split_index(tmp_path / "lm" / "2", deployed.models / "lm" / "2", 2, contexts=contexts)
    second = LocalDecoder(open_index(tmp_path / "lm" / "2", kernel_cache=kernel_cache))
    hidden = make_hidden(1, D)
    seen = list[tuple[str, bool]]()
    stopping = threading.Event()

    def ask() -> None:
        right = {"1": whole_ids(indexes, kernel_cache, hidden), "2": second.topk(hidden, 5).ids}
        while not stopping.is_set():
            reply = deployed.client.topk(hidden, 5, model="lm")
            version = reply.answer.version
            seen.append((version, np.array_equal(reply.ids, right[version])))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        until(lambda: len(seen) > 3)
        deployed.admin.load("lm", 2, alias="stable")
        until(lambda: seen[-1][0] == "2")
    finally:
        stopping.set()
        thread.join(WAIT_S)
    assert all(right for _, right in seen)
    versions = [version for version, _ in seen]
    assert versions == sorted(versions)
    deployed.admin.set_alias("lm", "stable", 1)
    assert deployed.client.topk(hidden, 5, model="lm").answer.version == "1"
    here = second.topk(contexts, 5, head="certified")  # by rows that lie beside the shards
    there = deployed.client.topk(contexts, 5, head="certified", model="lm@2")
    np.testing.assert_array_equal(here.ids, there.ids)
    np.testing.assert_array_equal(here.logits, there.logits)
    assert there.answer.exact.all()


def whole_ids(indexes: Indexes, kernel_cache: Path, hidden: np.ndarray) -> np.ndarray:
    path = indexes.whole / "lm" / "1"
    return LocalDecoder(open_index(path, kernel_cache=kernel_cache)).topk(hidden, 5).ids


def test_shards_of_another_version_are_refused_by_name(deployed: Deployed, tmp_path: Path) -> None:
    third = deployed.models / "lm" / "3"
    write_lm(tmp_path / "lm" / "3", tied=False, seeds={"of": 3})
    split_index(tmp_path / "lm" / "3", third, 2)
    shutil.rmtree(third / "shards" / "2")
    shutil.copytree(deployed.models / "lm" / "2" / "shards" / "2", third / "shards" / "2")
    with pytest.raises(InvalidRequest, match=r"shards/2: another shard: rows \d+ .. 1947 of"):
        deployed.admin.load("lm", 3)
    assert deployed.client.model("lm@3").state == "failed"
    assert deployed.client.topk(make_hidden(1, D), 5, model="lm@2").answer.version == "2"
    shutil.rmtree(third)


def test_up_again_serves_new_folders_and_closes_versions_without_one(
    deployed: Deployed, tmp_path: Path
) -> None:
    status_of = pytest.importorskip("logitsieve.ray.serving.deployment").status_of
    shutil.rmtree(deployed.models / "lm" / "2")
    write_lm(tmp_path / "lm" / "4", tied=False, seeds={"of": 4})
    split_index(tmp_path / "lm" / "4", deployed.models / "lm" / "4", 2)
    status = deployed.up(replicas=2)
    assert [v.number for v in status.ingresses["ingress-1"].versions] == [1, 4]
    assert deployed.client.topk(make_hidden(1, D), 5, model="lm@4").answer.version == "4"
    shutil.rmtree(deployed.models / "lm" / "4")
    status = deployed.up(replicas=2)
    assert [v.number for v in status.ingresses["ingress-1"].versions] == [1]
    left = [shard for shard in status_of().shards if shard.status != "DELETING"]
    assert {shard.app.split("-of-")[0] for shard in left} == {
        "logitsieve-shard-lm-1-1",
        "logitsieve-shard-lm-1-2",
    }
