"""ModelInfer, driven by Triton's own client."""

from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as kserve
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.kserve.infer import to_request
from tests.server.kserve.inputs import HIDDEN, SAMPLE, SEEDS, code_of, given, hidden, whole
from tests.server.running import WAIT_S, Running


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_topk_is_our_own(server: Running, client: Any, dtype: type) -> None:
    rows: np.ndarray = HIDDEN.astype(dtype)
    result = client.infer(
        "demo", [hidden(rows), whole("k", 5)], request_id="7", parameters={"normalizer": "exact"}
    )
    ours = server.client.topk(rows, 5, model="demo", normalizer="exact")
    np.testing.assert_array_equal(result.as_numpy("ids"), ours.ids)
    np.testing.assert_array_equal(result.as_numpy("logits"), ours.logits)
    np.testing.assert_array_equal(result.as_numpy("log_z"), ours.answer.log_z)
    np.testing.assert_array_equal(result.as_numpy("exact"), ours.answer.exact)
    np.testing.assert_array_equal(result.as_numpy("scanned"), ours.answer.scanned)
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("demo", "1", "7")
    assert response.parameters["digest"].string_param == ours.answer.digest
    assert response.parameters["normalizer"].string_param == "exact"


def test_draws_are_our_own(server: Running, client: Any) -> None:
    result = client.infer(
        "demo",
        [hidden(), whole("samples", 4), given("seeds", SEEDS, "UINT64")],
        parameters=SAMPLE | {"step": 3, "temperature": 0.5, "top_k": 50, "top_p": 0.9},
    )
    ours = server.client.sample(
        HIDDEN, 4, seeds=SEEDS, step=3, temperature=0.5, top_k=50, top_p=0.9, model="demo"
    )
    np.testing.assert_array_equal(result.as_numpy("ids"), ours.ids)
    np.testing.assert_array_equal(result.as_numpy("log_probs"), ours.log_probs)


def test_one_seed_is_spread_over_the_rows(server: Running, client: Any) -> None:
    inputs = [hidden(), given("seeds", np.array([7], np.uint64), "UINT64")]
    result = client.infer("demo", inputs, parameters=SAMPLE)
    ours = server.client.sample(HIDDEN, seeds=7, model="demo")
    np.testing.assert_array_equal(result.as_numpy("ids"), ours.ids)
    assert result.get_response().parameters["head"].string_param == ours.answer.head == "exact"


def test_a_width_brings_log_z(server: Running, client: Any) -> None:
    result = client.infer("other", [hidden(), whole("k", 3)], parameters={"width": 1e-4})
    ours = server.client.topk(HIDDEN, 3, model="other", width=1e-4)
    np.testing.assert_array_equal(result.as_numpy("log_z"), ours.answer.log_z)
    assert result.get_response().parameters["normalizer"].string_param == "certified"


def test_a_head_with_knobs_a_version_and_some_outputs(server: Running, client: Any) -> None:
    result = client.infer(
        "demo",
        [hidden(), whole("k", 3)],
        model_version="2",
        outputs=[triton.InferRequestedOutput("scanned"), triton.InferRequestedOutput("ids")],
        parameters={"head": "screen", "knobs.probes": 2},
    )
    ours = server.client.topk(HIDDEN, 3, model="demo@2", head="screen", knobs={"probes": 2})
    np.testing.assert_array_equal(result.as_numpy("scanned"), ours.answer.scanned)
    assert [tensor.name for tensor in result.get_response().outputs] == ["scanned", "ids"]
    assert result.get_response().parameters["head"].string_param == "screen"
    exact = client.infer("demo", [hidden(), whole("k", 3)], parameters={"exact": True})
    assert exact.as_numpy("exact").all()
    assert exact.get_response().parameters["chance"].double_param == 0.0


def request(**more: Any) -> Any:
    """One of typed contents."""
    message = kserve.ModelInferRequest(model_name="demo", **more)
    rows = message.inputs.add(name="hidden", datatype="FP32", shape=HIDDEN.shape)
    rows.contents.fp32_contents.extend(HIDDEN.ravel().tolist())
    count = message.inputs.add(name="k", datatype="INT32", shape=[1])
    count.contents.int_contents.append(2)
    return message


def infer(server: Running, message: Any) -> Any:
    return GRPCInferenceServiceStub(server.channel).ModelInfer(message, timeout=WAIT_S)


def test_typed_contents(server: Running) -> None:
    response = infer(server, request())
    ids = np.frombuffer(response.raw_output_contents[0], np.int32).reshape(3, 2)
    np.testing.assert_array_equal(ids, server.client.topk(HIDDEN, 2, model="demo").ids)


def test_typed_contents_are_counted_before_they_are_read() -> None:
    message = request()
    message.inputs[0].contents.fp32_contents.extend([0.0] * 1000)
    named = {"hidden.contents": message}
    message = request()
    message.inputs[0].shape[0] = 1 << 20
    named["hidden"] = message
    message = request(parameters={"method": {"string_param": "sample"}})
    message.inputs[1].name, message.inputs[1].datatype = "seeds", "UINT64"
    message.inputs[1].shape[0] = 1 << 20
    named["seeds"] = message
    for field, message in named.items():
        with pytest.raises(InvalidRequest) as caught:
            to_request(message, "demo", max_rows=256)
        assert caught.value.field == field


def test_fields_that_are_unknown_change_no_value(server: Running) -> None:
    message = request()
    message.inputs[0].contents.MergeFromString(b"\xf8\x07\x01")  # number 127
    assert infer(server, message).outputs == infer(server, request()).outputs


@pytest.mark.parametrize(
    ("inputs", "parameters", "named"),
    [
        ([], {}, "k"),
        ([whole("k", 2)], {}, "hidden"),
        ([hidden()], {}, "k"),
        ([hidden(), whole("k", 0)], {}, "k"),
        ([hidden(), whole("k", -1)], {}, "k"),
        ([hidden(), whole("k", 129)], {}, "k"),
        ([hidden(), whole("k", 2), whole("k", 2)], {}, "inputs"),
        ([hidden(), whole("samples", 2)], {}, "inputs"),
        ([hidden(), whole("samples", 2)], SAMPLE, "seeds"),
        ([hidden(), given("seeds", SEEDS, "UINT64")], SAMPLE | {"top_k": 129}, "top_k"),
        ([hidden(HIDDEN[:, :23]), whole("k", 2)], {}, "hidden"),
        ([hidden(np.full((1, 24), np.nan, np.float32)), whole("k", 2)], {}, "hidden"),
        ([hidden(np.zeros((257, 24), np.float32)), whole("k", 2)], {}, "hidden"),
        ([given("hidden", HIDDEN.astype(np.float64), "FP64"), whole("k", 2)], {}, "hidden"),
        ([given("hidden", HIDDEN[0], "FP32"), whole("k", 2)], {}, "hidden"),
        ([hidden(), whole("k", 2)], {"method": "beam"}, "parameters.method"),
        ([hidden(), whole("k", 2)], {"made_up": 1}, "parameters.made_up"),
        ([hidden(), whole("k", 2)], {"temperature": 1.0}, "parameters.temperature"),
        ([hidden(), whole("k", 2)], {"normalizer": "none"}, "parameters.normalizer"),
        ([hidden(), whole("k", 2)], {"exact": 1}, "parameters.exact"),
        ([hidden(), whole("k", 2)], {"width": "narrow"}, "parameters.width"),
        ([hidden(), whole("k", 2)], {"width": -0.5}, "width"),
        ([hidden(), whole("k", 2)], {"exact": True, "head": "screen"}, "parameters"),
        ([hidden(), whole("k", 2)], {"min_precision": 0.0}, "min_precision"),
        ([hidden(), whole("k", 2)], {"head": "screen", "knobs.speed": 1}, "speed"),
    ],
)
def test_what_is_refused(
    client: Any, inputs: list[Any], parameters: dict[str, Any], named: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("demo", inputs, parameters=parameters)
    assert code_of(caught) == "INVALID_ARGUMENT"
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "parameters", "text"),
    [
        (
            [hidden(), whole("k", 2)],
            {"tempo": 3},
            "parameters.tempo: got 'tempo' for topk, allowed: method, head, knobs.<name>, ",
        ),
        ([hidden()], {}, "k: got no such input, allowed: an INT32 input of one integer"),
    ],
)
def test_a_refusal_names_what_was_got_and_what_is_allowed(
    client: Any, inputs: list[Any], parameters: dict[str, Any], text: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("demo", inputs, parameters=parameters)
    assert text in str(caught.value)


def test_outputs_that_there_are_not(client: Any) -> None:
    for name in ("log_z", "log_probs", "made_up"):
        wanted = [triton.InferRequestedOutput(name)]
        with pytest.raises(InferenceServerException, match="outputs"):
            client.infer("demo", [hidden(), whole("k", 2)], outputs=wanted)
    wanted = [triton.InferRequestedOutput("ids", class_count=2)]
    with pytest.raises(InferenceServerException, match="classification"):
        client.infer("demo", [hidden(), whole("k", 2)], outputs=wanted)


def test_a_declared_shape_is_that_of_the_bytes(server: Running) -> None:
    for name, size in (("k", 7), ("k", 0), ("samples", 7)):
        message = request()
        message.inputs[1].name = name
        message.inputs[1].shape[0] = size
        message.inputs[1].contents.int_contents[:] = range(size)
        if name == "samples":
            message.parameters["method"].string_param = "sample"
        with pytest.raises(grpc.RpcError) as caught:
            infer(server, message)
        assert caught.value.details() == f"{name}.shape: got [{size}], allowed: [1]"


def test_an_output_is_named_once(client: Any) -> None:
    wanted = [triton.InferRequestedOutput(name) for name in ("ids", "logits", "ids")]
    with pytest.raises(InferenceServerException, match="outputs: got 'ids', allowed: each once of"):
        client.infer("demo", [hidden(), whole("k", 2)], outputs=wanted)


def test_contents_come_in_one_typed_field(server: Running) -> None:
    message = request()
    message.inputs[1].contents.int64_contents.append(3)
    with pytest.raises(grpc.RpcError) as caught:
        infer(server, message)
    said = "k.contents: got int64_contents, allowed: int_contents alone"
    assert caught.value.details() == said


def broken(change: str) -> Any:
    message = request()
    match change:
        case "raw and typed":
            message.raw_input_contents.extend([b"", b""])
        case "too few raw":
            message.raw_input_contents.append(b"")
        case "negative":
            message.inputs[0].shape[0] = -1
        case "huge":
            message.inputs[0].shape[0] = 1 << 40
        case "short":
            message.inputs[0].contents.fp32_contents.pop()
        case "two of k":
            message.inputs[1].shape[0] = 2
            message.inputs[1].contents.int_contents.append(2)
        case "typed halves":
            message.inputs[0].datatype = "FP16"
        case "shared memory":
            message.inputs[0].parameters["shared_memory_region"].string_param = "mine"
        case "no value":
            message.parameters["head"].SetInParent()
        case "repository":
            message.model_name = "demo"
            message.parameters["priority"].uint64_param = 1
    return message


@pytest.mark.parametrize(
    "change",
    [
        "raw and typed",
        "too few raw",
        "negative",
        "huge",
        "short",
        "two of k",
        "typed halves",
        "shared memory",
        "no value",
        "repository",
    ],
)
def test_broken_messages(server: Running, change: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        infer(server, broken(change))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
