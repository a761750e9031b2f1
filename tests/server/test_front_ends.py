"""Every field of a request is known behind each door: one that forgets a field is named here."""

import inspect
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import Decoder
from logitsieve.api.requests import (
    Beams,
    BeamStepRequest,
    Request,
    SampleRequest,
    Sampling,
    ScoreRequest,
    TopKRequest,
)
from logitsieve.cli.generate import SETTINGS
from logitsieve.client.llamacpp_sequences import GenerationOptions
from logitsieve.completions.fields import COMMON
from logitsieve.console.answers import draws
from logitsieve.server import ServeConfig
from logitsieve.server.kserve.infer import OF_SAMPLE, TENSORS
from logitsieve.v1.rpcs import RPC_OF
from tests.synthetic import make_hidden

ROWS = 6
HIDDEN = make_hidden(ROWS)
BANNED = Constraints(banned=[[row] for row in range(ROWS)]).for_rows(ROWS)
DRAWN = Sampling.of(ROWS, 2, {"seeds": 7})
STEPPED = Beams.of(ROWS, np.arange(-ROWS, 0), 3, 2, {"lengths": range(ROWS), "eos_ids": [1]})
REQUESTS: tuple[Request[Any], ...] = (
    TopKRequest(HIDDEN, 5, constraints=BANNED),
    ScoreRequest(HIDDEN, np.arange(2 * ROWS, dtype=np.int32).reshape(ROWS, 2)),
    SampleRequest(HIDDEN, DRAWN),
    BeamStepRequest(HIDDEN, STEPPED),
)
# Doors for texts have their own words.
OF_A_CALL = {"samples", "seeds", "step", "log_probs", "replace"}
FILTERS = {*Sampling._fields} - OF_A_CALL


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_the_wire_and_the_methods_have_every_field(request_: Request[Any]) -> None:
    rpc = RPC_OF[type(request_)]
    fields_ = {"model_spec", "hidden_states", "constraints", *request_.options}
    assert {*rpc.request.DESCRIPTOR.fields_by_name} == fields_
    parameters = inspect.signature(getattr(Decoder, rpc.method)).parameters
    assert {*request_.options} <= parameters.keys()


def names_of_console() -> set[str]:
    asked: set[str] = set()

    def sample(hidden_states: Any, samples: int, **options: Any) -> None:
        asked.update(options)
        raise StopIteration

    decoder: Any = SimpleNamespace(sample=sample, index=SimpleNamespace(vocab_size=9))
    with pytest.raises(StopIteration):
        draws(decoder, HIDDEN[:1], dict.fromkeys(FILTERS, 1), ServeConfig())
    return asked


DOORS = {
    "KServe": {*OF_SAMPLE} | {each.name for each in TENSORS["inputs"]},
    "generate": {*SETTINGS},
    "GenerationOptions": {each.name for each in fields(GenerationOptions)},
    "completions": {*COMMON},
    "console": names_of_console(),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_has_every_filter_of_draws(door: str) -> None:
    assert FILTERS - DOORS[door] == set()


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_a_part_has_its_rows_of_everything(request_: Request[Any]) -> None:
    part = request_.part(slice(3, 6))
    assert type(part) is type(request_)
    np.testing.assert_array_equal(part.hidden_states, HIDDEN[3:6])
    for name, value in request_.options.items():
        own = part.options[name]
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(own, value[3:6])
        else:
            assert own == value
    if request_.constraints is not None:
        assert part.constraints is not None
        banned: Any = part.constraints.banned
        assert (banned.offsets.tolist(), banned.ids.tolist()) == ([0, 1, 2, 3], [3, 4, 5])
