"""A folder of models in which a version is in shards, served by one process."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.client import DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index, split_index
from logitsieve.server.metrics import Call
from logitsieve.server.models.repository import Repository, open_configured
from logitsieve.server.models.sharded import ShardedModel, read_digest
from logitsieve.utils.options import no_progress
from tests.refusals import refused
from tests.server.running import Loop, Running, config_for, running, write_whole
from tests.synthetic import make_hidden

HIDDEN = make_hidden(7, 24)
SEEDS = np.arange(7, dtype=np.uint64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lm@1 in two shards; what it was split from lies in `whole` beside the folder."""
    folder = tmp_path_factory.mktemp("sharded")
    split_index(write_whole(folder / "whole", "lm"), folder / "models" / "lm" / "1", 2)
    return folder / "models"


@pytest.fixture(scope="module")
def local(models: Path) -> LocalDecoder:
    path = models.parent / "whole" / "lm" / "1"
    return LocalDecoder(open_index(path))


@pytest.fixture(scope="module")
def run(models: Path, loop: Loop) -> Iterator[Running]:
    with running(loop, config_for(models)) as run:
        yield run


@pytest.fixture
def client(run: Running) -> DecoderClient:
    return run.client


@pytest.mark.parametrize("head", ["full", "sketch"])
def test_answers_are_of_the_whole(client: DecoderClient, local: LocalDecoder, head: str) -> None:
    here, there = local.topk(HIDDEN, 5, head=head), client.topk(HIDDEN, 5, head=head)
    np.testing.assert_array_equal(there.ids, here.ids)
    assert (there.answer.head, there.answer.version) == (head, "1")
    drawn = client.sample(HIDDEN, 3, seeds=SEEDS, head=head)
    np.testing.assert_array_equal(drawn.ids, local.sample(HIDDEN, 3, seeds=SEEDS, head=head).ids)
    scored = client.score(HIDDEN, here.ids, head=head, normalizer="full").log_probs
    right = local.score(HIDDEN, here.ids, head=head, normalizer="full").log_probs
    np.testing.assert_allclose(scored, right, atol=1e-5)
    beams = client.beam_step(HIDDEN, beams_in=7, beams_out=4, head=head)
    steps = local.beam_step(HIDDEN, beams_in=7, beams_out=4, head=head)
    np.testing.assert_array_equal(beams.tokens, steps.tokens)


def test_a_call_notes_when_shards_are_asked(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Call] = []
    monkeypatch.setattr(run.server.metrics, "on_finish", calls.append)
    run.client.topk(HIDDEN, 5)
    (call,) = calls
    assert sorted(what for what, _, _ in call.timings) == ["shard 0", "shard 256"]
    ended = call.arrived_ns + call.elapsed_ns
    for _, start, end in call.timings:
        assert call.arrived_ns + call.queue_ns <= start < end <= ended


def test_what_a_shard_refuses_is_refused_by_name(client: DecoderClient) -> None:
    bad = HIDDEN.copy()
    bad[2, 3] = np.nan
    with refused("normalizer"):
        client.topk(HIDDEN, 5, normalizer="lowrank")
    with refused("head"):
        client.topk(HIDDEN, 5, head="screen")
    with refused("hidden_states[2]"):
        client.sample(bad)


def test_a_model_in_shards_is_described(client: DecoderClient, models: Path) -> None:
    model = client.model("lm")
    assert (model.vocab_size, model.dim, model.state) == (300, 24, "available")
    assert set(model.heads) == {"full", "sketch"}
    assert model.digest == read_digest(models / "lm" / "1")
    assert client.topk(HIDDEN, 5).answer.head == "sketch"  # the default head
    assert client.topk(HIDDEN, 5, min_precision=0.9).answer.proven.all()


def test_aliases_are_read_without_a_write(models: Path, tmp_path: Path) -> None:
    (tmp_path / "lm").symlink_to(models / "lm")
    file = models / "lm" / "aliases.json"
    repository = Repository(config_for(tmp_path))
    repository.load("lm", 1, no_progress)
    file.write_text('{"canary": 1}', encoding="utf-8")
    stamp = file.stat()
    repository.adopt_aliases("lm")
    assert repository.routes.served("lm:canary").decoder.version == "1"
    assert file.stat() == stamp
    file.unlink()
    repository.adopt_aliases("lm")
    assert repository.routes.aliases["lm"] == {}


def test_a_shard_that_is_missing_is_named(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "lm" / "2"
    (path / "shards").mkdir(parents=True)
    config = config_for(tmp_path)
    repository = Repository(config)
    repository.load("lm", 2, no_progress)
    assert "it has no shards" in repository.routes.get("lm@2").error
    (path / "shards" / "1").symlink_to(models / "lm" / "1" / "shards" / "2")
    with pytest.raises(InvalidRequest, match=r"shards\[0\]: got rows from 256 "):
        open_configured(path, config, no_progress)
    assert isinstance(open_configured(models / "lm" / "1", config, no_progress), ShardedModel)
