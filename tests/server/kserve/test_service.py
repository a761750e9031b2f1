"""The KServe facade but for ModelInfer, driven by Triton's own client."""

import subprocess
import sys
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import model_config_pb2

from logitsieve.server.app import _announce
from tests.server.kserve.inputs import SAMPLE, SEEDS, given, hidden_states, raised, whole
from tests.server.running import WAIT_S, Running, requests_total


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
    assert shapes["hidden_states"] == ("FP32", [-1, 24])
    assert shapes["k"] == ("INT32", [1])
    results = [
        client.infer("demo", [hidden_states(), whole("k", 2)], parameters={"normalizer": "full"}),
        *(
            client.infer("demo", [hidden_states(), given("seeds", SEEDS, "UINT64")], parameters=how)
            for how in (SAMPLE, SAMPLE | {"replace": False})
        ),
    ]
    told = {t.name: t.datatype for t in metadata.outputs}
    found = {t.name: t.datatype for result in results for t in result.get_response().outputs}
    assert found == told


def test_the_configuration_has_the_tensors_of_the_metadata(client: Any) -> None:
    config = client.get_model_config("demo:canary").config
    assert (config.name, config.backend, config.max_batch_size) == ("demo", "logitsieve", 0)
    metadata = client.get_model_metadata("demo")
    for configured, told in ((config.input, metadata.inputs), (config.output, metadata.outputs)):
        found = [(t.name, model_config_pb2.DataType.Name(t.data_type), t.dims) for t in configured]
        assert found == [(t.name, f"TYPE_{t.datatype}", t.shape) for t in told]
    assert [t.name for t in config.input if not t.optional] == ["hidden_states", "k"]


def test_statistics_count_calls_of_each_version(client: Any) -> None:
    def counts(model: str, version: str = "") -> dict[tuple[str, str], tuple[int, int, int]]:
        found = {}
        for one in client.get_inference_statistics(model, version).model_stats:
            took = one.inference_stats
            parts = (took.queue, took.compute_infer, took.compute_output)
            assert {part.count for part in parts} == {took.success.count} == {one.inference_count}
            assert sum(part.ns for part in parts) <= took.success.ns
            assert (took.success.ns > 0) == (one.last_inference > 0) == (one.inference_count > 0)
            found[one.name, one.version] = (
                one.inference_count,
                took.success.count,
                took.fail.count,
            )
        return found

    first, second = ("demo", "1"), ("demo", "2")
    before = counts("demo")
    assert before.keys() == {first, second}
    for k in (2, 3):
        client.infer("demo", [hidden_states(), whole("k", k)], model_version="2")
    with raised("INVALID_ARGUMENT"):
        client.infer("demo", [hidden_states(), whole("k", 1 << 20)], model_version="2")
    with raised("NOT_FOUND"):
        client.infer("nothing", [hidden_states(), whole("k", 2)])
    inferred, succeeded, failed = before[second]
    after = before | {second: (inferred + 2, succeeded + 2, failed + 1)}
    assert counts("demo") == after
    assert counts("demo", "2") == counts("demo:canary") == {second: after[second]}
    assert counts("").items() > after.items()


def test_what_there_is_not_and_garbage(client: Any, server: Running) -> None:
    for model, version in (("nothing", ""), ("demo", "3"), ("demo", "9")):
        with raised("NOT_FOUND"):
            client.infer(model, [hidden_states(), whole("k", 2)], model_version=version)
        with raised("NOT_FOUND"):
            client.get_model_metadata(model, version)
        with raised("NOT_FOUND"):
            client.get_model_config(model, version)
        with raised("NOT_FOUND"):
            client.get_inference_statistics(model, version)
    with raised("UNIMPLEMENTED"):
        client.get_trace_settings("demo")
    for name in ("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "RepositoryIndex"):
        call = server.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
            call(b"\xff", timeout=WAIT_S)


def test_loading_is_for_the_admin_port(server: Running, client: Any) -> None:
    for change in (client.load_model, client.unload_model):
        with raised("PERMISSION_DENIED"):
            change("demo@2")
    admin_address = f"127.0.0.1:{server.server.admin_port}"
    with triton.InferenceServerClient(admin_address) as admin:
        admin.load_model("demo@2")
        for model in ("demo", "demo@x", "demo@3"):
            with raised("INVALID_ARGUMENT"):
                admin.load_model(model)
        with raised("NOT_FOUND"):
            admin.unload_model("demo@9")
    assert client.is_model_ready("demo", "2")


def test_calls_are_counted_by_their_own_names(server: Running, client: Any) -> None:
    client.infer("demo", [hidden_states(), whole("k", 2)])
    text = server.server.metrics.text().decode()
    assert requests_total("ModelInfer", "demo", "OK", "1") in text


def test_the_start_says_that_it_answers(
    server: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "logitsieve")
    _announce(server.server)
    assert caplog.messages[-1].endswith(", KServe too")
    monkeypatch.setattr("logitsieve.server.app.has_kserve", lambda: False)
    _announce(server.server)
    assert caplog.messages[-1].endswith(", no KServe ([kserve] is not installed)")


def test_without_tritonclient_there_is_no_facade() -> None:
    script = (
        "import sys; sys.modules['tritonclient'] = None\n"
        "from logitsieve.server.kserve import kserve_services\n"
        "assert kserve_services() is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=WAIT_S)
