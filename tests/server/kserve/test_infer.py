"""The KServe facade, driven by Triton's own client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as kserve
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from tests.server.running import WAIT_S, Running, requests_total
from tests.synthetic import make_hidden

HIDDEN = np.asarray(make_hidden(3), np.float32)
SEEDS = np.array([1, 2, 3], np.uint64)


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def given(name: str, array: np.ndarray, datatype: str) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def hidden(array: np.ndarray = HIDDEN) -> Any:
    return given("hidden", array, "FP16" if array.dtype == np.float16 else "FP32")


def whole(name: str, value: int) -> Any:
    return given(name, np.array([value], np.int32), "INT32")


def code_of(caught: pytest.ExceptionInfo[InferenceServerException]) -> str:
    return str(caught.value.status()).removeprefix("StatusCode.")


def test_server_and_models(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata().name == "logitsieve"
    assert client.is_model_ready("demo")
    assert client.is_model_ready("demo", "2")
    assert client.is_model_ready("demo:canary")
    assert not client.is_model_ready("demo", "3")
    assert not client.is_model_ready("nothing")
    states = {(m.name, m.version): m.state for m in client.get_model_repository_index().models}
    assert states["demo", "1"] == "READY"
    assert states["demo", "3"] == "UNAVAILABLE"


def test_metadata_is_what_model_infer_takes_and_gives(client: Any) -> None:
    metadata = client.get_model_metadata("demo")
    assert list(metadata.versions) == ["1", "2"]
    shapes = {t.name: (t.datatype, list(t.shape)) for t in metadata.inputs}
    assert shapes["hidden"] == ("FP32", [-1, 24])
    assert shapes["k"] == ("INT32", [1])
    results = [
        client.infer("demo", [hidden(), whole("k", 2)], parameters={"normalizer": "exact"}),
        client.infer("demo", [hidden(), given("seeds", SEEDS, "UINT64")], parameters=SAMPLE),
    ]
    told = {t.name: t.datatype for t in metadata.outputs}
    found = {t.name: t.datatype for result in results for t in result.get_response().outputs}
    assert found == told


SAMPLE = {"method": "sample"}


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


def test_outputs_that_there_are_not(client: Any) -> None:
    for name in ("log_z", "log_probs", "made_up"):
        wanted = [triton.InferRequestedOutput(name)]
        with pytest.raises(InferenceServerException, match="outputs"):
            client.infer("demo", [hidden(), whole("k", 2)], outputs=wanted)
    wanted = [triton.InferRequestedOutput("ids", class_count=2)]
    with pytest.raises(InferenceServerException, match="classification"):
        client.infer("demo", [hidden(), whole("k", 2)], outputs=wanted)


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


def test_what_there_is_not(client: Any) -> None:
    for model, version in (("nothing", ""), ("demo", "3"), ("demo", "9")):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, [hidden(), whole("k", 2)], model_version=version)
        assert code_of(caught) == "NOT_FOUND"
        with pytest.raises(InferenceServerException) as caught:
            client.get_model_metadata(model, version)
        assert code_of(caught) == "NOT_FOUND"
    with pytest.raises(InferenceServerException) as caught:
        client.get_inference_statistics("demo")
    assert code_of(caught) == "UNIMPLEMENTED"


def test_garbage_is_no_message(server: Running) -> None:
    for name in ("ModelInfer", "ModelReady", "ModelMetadata", "RepositoryIndex"):
        call = server.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff", timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_loading_is_for_the_admin_port(server: Running, client: Any) -> None:
    for change in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException) as caught:
            change("demo@2")
        assert code_of(caught) == "PERMISSION_DENIED"
    admin_address = f"127.0.0.1:{server.server.admin_port}"
    with triton.InferenceServerClient(admin_address) as admin:
        admin.load_model("demo@2")
        for model in ("demo", "demo@x", "demo@3"):
            with pytest.raises(InferenceServerException) as caught:
                admin.load_model(model)
            assert code_of(caught) == "INVALID_ARGUMENT"
        with pytest.raises(InferenceServerException) as caught:
            admin.unload_model("demo@9")
        assert code_of(caught) == "NOT_FOUND"
    assert client.is_model_ready("demo", "2")


def test_calls_are_counted_by_their_own_names(server: Running, client: Any) -> None:
    client.infer("demo", [hidden(), whole("k", 2)])
    text = server.server.metrics.text().decode()
    assert requests_total("ModelInfer", "demo", "OK", "1") in text


def test_without_tritonclient_there_is_no_facade() -> None:
    script = (
        "import sys; sys.modules['tritonclient'] = None\n"
        "from logitsieve.server.kserve import kserve_handlers\n"
        "assert kserve_handlers(None, None, None) == ()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=WAIT_S)
