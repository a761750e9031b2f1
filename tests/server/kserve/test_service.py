"""The KServe facade but for ModelInfer, driven by Triton's own client."""

import subprocess
import sys
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton

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


def test_what_there_is_not_and_garbage(client: Any, server: Running) -> None:
    for model, version in (("nothing", ""), ("demo", "3"), ("demo", "9")):
        with raised("NOT_FOUND"):
            client.infer(model, [hidden_states(), whole("k", 2)], model_version=version)
        with raised("NOT_FOUND"):
            client.get_model_metadata(model, version)
    with raised("UNIMPLEMENTED"):
        client.get_inference_statistics("demo")
    for name in ("ModelInfer", "ModelReady", "ModelMetadata", "RepositoryIndex"):
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
