from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest, ModelNotFound
from logitsieve.decoding import NORMALIZERS, LocalDecoder
from logitsieve.heads import HEADS
from logitsieve.index import open_index
from tests.kernels.ready import forget, ready
from tests.server.running import write_model
from tests.synthetic import ARRAYS, make_hidden, make_softmax, write_heads


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> LocalDecoder:
    folder = tmp_path_factory.mktemp("models")
    index = open_index(write_model(folder, "demo", 2), kernel_cache=kernel_cache)
    decoder = LocalDecoder(index)
    decoder.warm()
    return decoder


def test_the_default_head_answers_unless_knobs_name_another_point(decoder: LocalDecoder) -> None:
    hidden_states = make_hidden(5)
    reply = decoder.topk(hidden_states, 4)
    top = decoder.index.head("screen").topk(hidden_states, 4)
    np.testing.assert_equal(reply[:2], top[:2])
    np.testing.assert_array_equal(reply.answer.scanned, top.scanned)
    answer = reply.answer
    assert (answer.model, answer.version, answer.head) == ("demo", "2", "screen")
    assert (answer.digest, answer.knobs["probes"]) == (decoder.index.digest, 1)
    assert (answer.normalizer, answer.log_z, answer.queue_ns) == ("", None, 0)
    assert answer.compute_ns > 0
    one, two = (decoder.topk(hidden_states, 4, knobs={"probes": n}) for n in (1, 2))
    assert (one.answer.scanned < two.answer.scanned).all()
    assert two.answer.knobs["probes"] == 2
    named = decoder.topk(hidden_states, 4, head="screen", knobs={"probes": 2})
    np.testing.assert_array_equal(named.ids, two.ids)
    usual = decoder.topk(hidden_states, 4, head="screen")  # which other knobs have not changed
    np.testing.assert_array_equal(usual.answer.scanned, one.answer.scanned)
    first, again = (decoder._head("screen", (("probes", 2.0),)) for _ in range(2))
    assert first is again
    with pytest.raises(InvalidRequest, match="full, screen"):
        decoder.topk(make_hidden(1), 1, head="svd")


@pytest.mark.parametrize("model", ["", "demo", "demo@2"])
def test_its_own_names(decoder: LocalDecoder, model: str) -> None:
    assert decoder.topk(make_hidden(1), 1, model=model).answer.model == "demo"


@pytest.mark.parametrize("model", ["other", "demo@1", "demo:stable"])
def test_other_names(decoder: LocalDecoder, model: str) -> None:
    with pytest.raises(ModelNotFound, match="demo@2"):
        decoder.topk(make_hidden(1), 1, model=model)


def test_after_warm_no_request_waits_for_a_compiler(tmp_path: Path, kernel_cache: Path) -> None:
    hidden_states, path = (
        make_hidden(2),
        write_heads(tmp_path / "demo" / "1", make_softmax(), *ARRAYS),
    )
    forget()
    decoder = LocalDecoder(open_index(path, kernel_cache=kernel_cache))
    decoder.warm()
    warm = ready()
    constraints = [None, Constraints(banned=[1]), Constraints(allowed=[1, 2, 3])]
    for head, normalizer, limits in product(HEADS, NORMALIZERS, constraints):
        options: Any = {"head": head, "normalizer": normalizer, "constraints": limits}
        decoder.topk(hidden_states, 3, **options)
        decoder.score(hidden_states, [[1, 2]] * 2, **options)
        decoder.beam_step(hidden_states, beams_in=2, beams_out=3, **options)
        for filters in ({}, {"top_k": 5}, {"top_p": 0.5, "min_p": 0.1}, {"temperature": 0}):
            decoder.sample(hidden_states, 3, **filters, **options)
    for head in HEADS:
        decoder.score(hidden_states, [[1, 2]] * 2, head=head, width=1e-9)
        decoder.sample(hidden_states, 3, head=head, width=1e-9)
    assert ready() == warm


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("topk", {"k": 1}),
        ("score", {"token_ids": [0]}),
        ("sample", {}),
        ("beam_step", {"beams_in": 1, "beams_out": 1}),
    ],
)
def test_a_misspelt_keyword(decoder: LocalDecoder, method: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="unknown keyword: hed"):
        getattr(decoder, method)(make_hidden(1), hed="full", **arguments)
