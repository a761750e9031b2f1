"""ModelInfer, driven by Triton's own client."""

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as kserve
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from logitsieve.server.kserve.infer import to_request
from tests.refusals import refused
from tests.server.kserve.inputs import HIDDEN, SAMPLE, SEEDS, given, hidden_states, raised, whole
from tests.server.running import WAIT_S, Running


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_topk_is_our_own(server: Running, client: Any, dtype: type) -> None:
    rows: np.ndarray = HIDDEN.astype(dtype)
    result = client.infer(
        "demo",
        [hidden_states(rows), whole("k", 5)],
        request_id="7",
        parameters={"normalizer": "full"},
    )
    ours = server.client.topk(rows, 5, model="demo", normalizer="full")
    np.testing.assert_array_equal(result.as_numpy("ids"), ours.ids)
    np.testing.assert_array_equal(result.as_numpy("logits"), ours.logits)
    np.testing.assert_array_equal(result.as_numpy("log_z"), ours.answer.log_z)
    np.testing.assert_array_equal(result.as_numpy("proven"), ours.answer.proven)
    np.testing.assert_array_equal(result.as_numpy("scanned"), ours.answer.scanned)
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("demo", "1", "7")
    assert response.parameters["digest"].string_param == ours.answer.digest
    assert response.parameters["normalizer"].string_param == "full"


def test_draws_are_our_own(server: Running, client: Any) -> None:
    many = {"step": 3, "temperature": 0.5, "top_k": 50, "top_p": 0.9}
    one_seed = np.array([7], np.uint64)  # spread over the rows
    asked: Any = ([whole("samples", 4)], SEEDS, many), ([], one_seed, {})
    asked += (([whole("samples", 4)], SEEDS, {"replace": False}),)
    for samples, seeds, options in asked:
        inputs = [hidden_states(), *samples, given("seeds", seeds, "UINT64")]
        result = client.infer("demo", inputs, parameters=SAMPLE | options)
        own: Any = {"seeds": seeds if samples else 7, "model": "demo", **options}
        ours = server.client.sample(HIDDEN, 4 if samples else 1, **own)
        np.testing.assert_array_equal(result.as_numpy("ids"), ours.ids)
        np.testing.assert_array_equal(result.as_numpy("log_probs"), ours.log_probs)
        assert (result.as_numpy("perturbed") is None) == (ours.perturbed is None)
        if ours.perturbed is not None:
            np.testing.assert_array_equal(result.as_numpy("perturbed"), ours.perturbed)
        assert result.get_response().parameters["head"].string_param == ours.answer.head == "full"


def test_a_version_a_head_with_knobs_some_outputs_and_a_width(server: Running, client: Any) -> None:
    result = client.infer(
        "demo",
        [hidden_states(), whole("k", 3)],
        model_version="2",
        outputs=[triton.InferRequestedOutput("scanned"), triton.InferRequestedOutput("ids")],
        parameters={"head": "screen", "knobs.probes": 2},
    )
    ours = server.client.topk(HIDDEN, 3, model="demo@2", head="screen", knobs={"probes": 2})
    np.testing.assert_array_equal(result.as_numpy("scanned"), ours.answer.scanned)
    assert [tensor.name for tensor in result.get_response().outputs] == ["scanned", "ids"]
    assert result.get_response().parameters["head"].string_param == "screen"
    exact = client.infer("demo", [hidden_states(), whole("k", 3)], parameters={"exact": True})
    assert exact.as_numpy("proven").all()
    assert exact.get_response().parameters["max_error"].double_param == 0.0
    proven = client.infer("other", [hidden_states(), whole("k", 3)], parameters={"max_error": 0})
    assert proven.get_response().parameters["head"].string_param == "sketch"
    assert proven.as_numpy("proven").all()
    wide = client.infer("other", [hidden_states(), whole("k", 3)], parameters={"width": 1e-4})
    ours = server.client.topk(HIDDEN, 3, model="other", width=1e-4)
    np.testing.assert_array_equal(wide.as_numpy("log_z"), ours.answer.log_z)
    assert wide.get_response().parameters["normalizer"].string_param == "sketch"


def request(**more: Any) -> Any:
    message = kserve.ModelInferRequest(model_name="demo", **more)
    rows = message.inputs.add(name="hidden_states", datatype="FP32", shape=HIDDEN.shape)
    rows.contents.fp32_contents.extend(HIDDEN.ravel().tolist())
    count = message.inputs.add(name="k", datatype="INT32", shape=[1])
    count.contents.int_contents.append(2)
    return message


def infer(server: Running, message: Any) -> Any:
    return GRPCInferenceServiceStub(server.channel).ModelInfer(message, timeout=WAIT_S)


def test_typed_contents_and_fields_that_are_unknown(server: Running) -> None:
    response = infer(server, request())
    ids = np.frombuffer(response.raw_output_contents[0], np.int32).reshape(3, 2)
    np.testing.assert_array_equal(ids, server.client.topk(HIDDEN, 2, model="demo").ids)
    message = request()
    message.inputs[0].contents.MergeFromString(b"\xf8\x07\x01")  # number 127
    assert infer(server, message).outputs == infer(server, request()).outputs


def test_typed_contents_are_counted_before_they_are_read() -> None:
    message = request()
    message.inputs[0].contents.fp32_contents.extend([0.0] * 1000)
    named = {"hidden_states.contents": message}
    message = request()
    message.inputs[0].shape[0] = 1 << 20
    named["hidden_states"] = message
    message = request(parameters={"method": {"string_param": "sample"}})
    message.inputs[1].name, message.inputs[1].datatype = "seeds", "UINT64"
    message.inputs[1].shape[0] = 1 << 20
    named["seeds"] = message
    for field, message in named.items():
        with refused(field):
            to_request(message, "demo", max_rows=256)


@pytest.mark.parametrize(
    ("inputs", "parameters", "named"),
    [
        ([], {}, "k"),
        ([whole("k", 2)], {}, "hidden_states"),
        ([hidden_states()], {}, "k: got no such input, allowed: an INT32 input of one integer"),
        ([hidden_states(), whole("k", 0)], {}, "k"),
        ([hidden_states(), whole("k", -1)], {}, "k"),
        ([hidden_states(), whole("k", 129)], {}, "k"),
        ([hidden_states(), whole("k", 2), whole("k", 2)], {}, "inputs"),
        ([hidden_states(), whole("samples", 2)], {}, "inputs"),
        ([hidden_states(), whole("samples", 2)], SAMPLE, "seeds"),
        ([hidden_states(), given("seeds", SEEDS, "UINT64")], SAMPLE | {"top_k": 129}, "top_k"),
        ([hidden_states(HIDDEN[:, :23]), whole("k", 2)], {}, "hidden_states"),
        ([hidden_states(np.full((1, 24), np.nan, np.float32)), whole("k", 2)], {}, "hidden_states"),
        ([hidden_states(np.zeros((257, 24), np.float32)), whole("k", 2)], {}, "hidden_states"),
        (
            [given("hidden_states", HIDDEN.astype(np.float64), "FP64"), whole("k", 2)],
            {},
            "hidden_states",
        ),
        ([given("hidden_states", HIDDEN[0], "FP32"), whole("k", 2)], {}, "hidden_states"),
        ([hidden_states(), whole("k", 2)], {"method": "beam"}, "parameters.method"),
        (
            [hidden_states(), whole("k", 2)],
            {"tempo": 3},
            "parameters.tempo: got 'tempo' for topk, allowed: method, head, knobs.<name>, ",
        ),
        ([hidden_states(), whole("k", 2)], {"temperature": 1.0}, "parameters.temperature"),
        ([hidden_states(), whole("k", 2)], {"normalizer": "none"}, "parameters.normalizer"),
        ([hidden_states(), whole("k", 2)], {"exact": 1}, "parameters.exact"),
        ([hidden_states(), whole("k", 2)], {"width": "narrow"}, "parameters.width"),
        ([hidden_states(), whole("k", 2)], {"width": -0.5}, "width"),
        ([hidden_states(), whole("k", 2)], {"exact": True, "head": "screen"}, "parameters"),
        ([hidden_states(), whole("k", 2)], {"min_precision": 0.0}, "min_precision"),
        ([hidden_states(), whole("k", 2)], {"max_error": "0"}, "parameters.max_error"),
        ([hidden_states(), whole("k", 2)], {"max_error": 1.0}, "max_error"),
        ([hidden_states(), whole("k", 2)], {"head": "screen", "knobs.speed": 1}, "speed"),
    ],
)
def test_refusals(client: Any, inputs: list[Any], parameters: dict[str, Any], named: str) -> None:
    with raised("INVALID_ARGUMENT", named):
        client.infer("demo", inputs, parameters=parameters)


@pytest.mark.parametrize(
    ("names", "classes", "said"),
    [
        (["log_z"], 0, "outputs"),
        (["log_probs"], 0, "outputs"),
        (["made_up"], 0, "outputs"),
        (["ids"], 2, "classification"),
        (["ids", "logits", "ids"], 0, "outputs: got 'ids', allowed: each once of"),
    ],
)
def test_outputs_that_are_refused(client: Any, names: list[str], classes: int, said: str) -> None:
    wanted = [triton.InferRequestedOutput(name, class_count=classes) for name in names]
    with pytest.raises(InferenceServerException, match=said):
        client.infer("demo", [hidden_states(), whole("k", 2)], outputs=wanted)


def reshape(message: Any, name: str, size: int) -> None:
    """A number as an array."""
    message.inputs[1].name = name
    message.inputs[1].shape[0] = size
    message.inputs[1].contents.int_contents[:] = range(size)
    if name == "samples":
        message.parameters["method"].string_param = "sample"


BROKEN: dict[str, Callable[[Any], object]] = {
    "raw and typed": lambda message: message.raw_input_contents.extend([b"", b""]),
    "too few raw": lambda message: message.raw_input_contents.append(b""),
    "negative": lambda message: message.inputs[0].shape.__setitem__(0, -1),
    "huge": lambda message: message.inputs[0].shape.__setitem__(0, 1 << 40),
    "short": lambda message: message.inputs[0].contents.fp32_contents.pop(),
    "typed halves": lambda message: setattr(message.inputs[0], "datatype", "FP16"),
    "k.contents: got int64_contents, allowed: int_contents alone": lambda message: message.inputs[
        1
    ].contents.int64_contents.append(3),
    **{
        f"{name}.shape: got [{size}], allowed: [1]": partial(reshape, name=name, size=size)
        for name, size in (("k", 7), ("k", 0), ("samples", 7))
    },
    "no value": lambda message: message.parameters["head"].SetInParent(),
    "shared_memory_region": lambda message: setattr(
        message.inputs[0].parameters["shared_memory_region"], "string_param", "mine"
    ),
    "priority": lambda message: setattr(message.parameters["priority"], "uint64_param", 1),
}


@pytest.mark.parametrize("change", BROKEN)
def test_broken_messages(server: Running, change: str) -> None:
    message = request()
    BROKEN[change](message)
    with pytest.raises(grpc.RpcError) as caught:
        infer(server, message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ":" not in change or caught.value.details() == change
