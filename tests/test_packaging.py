"""The wheel in an environment of its own: the base installation is small, and it works.

`make test` links what the wheel requires to packages of this environment, and no other package;
`make test-all` lets pip install it.
"""

import json
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import PathDistribution, distribution
from pathlib import Path

import grpc
import numpy as np
import pytest
from packaging.requirements import Requirement

from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.client.answering import answering

REPOSITORY = Path(__file__).parents[1]
INDEX = REPOSITORY / "tests" / "index" / "golden" / "1"
INSTALLED = pytest.param("installed", marks=pytest.mark.exhaustive)
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def run(*command: str | Path, code: int = 0) -> str:
    away = REPOSITORY.anchor  # not the checkout, whose files must not be found
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=500, cwd=away
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def install(how: str, folder: Path, what: Path, extra: str = "") -> Path:
    """The bin folder of a fresh environment with `what`, its requirements and those of `extra`."""
    venv.create(folder)
    options = ["--no-deps"] if how == "linked" else ["-c", REPOSITORY / "constraints.txt"]
    wanted = f"{what}[{extra}]" if extra else what
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")  # it has none
    run(*pip, "install", "--quiet", "--no-compile", *options, wanted)
    if how == "linked":
        [packages] = folder.glob("lib/*/site-packages")
        [own] = packages.glob("logitsieve-*.dist-info")
        for name in required(PathDistribution(own).requires or [], {extra}):
            here = distribution(name)
            for top in {file.parts[0] for file in here.files or []} - {"..", "__pycache__"}:
                if not (packages / top).exists():
                    (packages / top).symlink_to(str(here.locate_file(top)))
    return folder / "bin"


def required(texts: list[str], extras: set[str]) -> set[str]:
    """Names of all packages that requirements need, their own requirements among them."""
    names: set[str] = set()
    for one in map(Requirement, texts):
        marks = [{"extra": extra} for extra in {"", *extras}]
        if one.name != "logitsieve" and (not one.marker or any(map(one.marker.evaluate, marks))):
            names |= {one.name} | required(distribution(one.name).requires or [], one.extras)
    return names


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, REPOSITORY)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module", params=["linked", INSTALLED])
def programs(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return install(request.param, tmp_path_factory.mktemp("base"), wheel)


def fixed_answer(request: pb.TopKRequest, context: object) -> pb.TopKResponse:
    """Id 7 and the sum of each row."""
    hidden_states = np.frombuffer(request.hidden_states.data, np.float32)
    logits = hidden_states.reshape(request.hidden_states.rows, -1).sum(axis=1, keepdims=True)
    response, rows = pb.TopKResponse(), len(logits)
    response.answer.model, response.answer.version = "fixed", "1"
    for tensor, array in (
        (response.ids, np.full((rows, 1), 7, np.int32)),
        (response.logits, logits),
        (response.answer.proven, np.ones(rows, np.bool_)),
        (response.answer.scanned, np.ones(rows, np.int32)),
        (response.answer.fallback, np.zeros(rows, np.bool_)),
    ):
        put(tensor, array)
    return response


@pytest.fixture
def address() -> Iterator[str]:
    top_k = grpc.unary_unary_rpc_method_handler(
        fixed_answer, pb.TopKRequest.FromString, pb.TopKResponse.SerializeToString
    )
    with answering("logitsieve.v1.Decoder", TopK=top_k) as address:
        yield address


def test_the_wheel_has_the_primer_and_requires_nothing_heavy(wheel: Path, programs: Path) -> None:
    assert "logitsieve/index_builder/capture/primer.txt" in zipfile.ZipFile(wheel).namelist()
    installed = programs.parent.glob("lib/*/site-packages/*.dist-info")
    names = {folder.name.partition("-")[0].lower() for folder in installed}
    assert {"logitsieve", "grpcio", "numpy", "typer"} <= names
    assert not names & {"numba", "torch", "faiss_cpu", "safetensors", "matplotlib"}


def test_the_bill_of_materials_lists_what_the_server_requires(tmp_path: Path) -> None:
    bill = tmp_path / "sbom.json"
    # The environment is the one that runs this test.
    run("make", "-C", REPOSITORY, "-o", ".venv/dev", "sbom", "EXTRA=server", f"SBOM={bill}")
    found = json.loads(bill.read_text())
    assert found["bomFormat"] == "CycloneDX"
    listed = {part["name"]: part for part in found["components"]}
    assert {"grpcio", "numba", "numpy", "protobuf", "uvicorn"} <= listed.keys()
    assert "torch" not in listed
    assert all(part["version"] and part["purl"] for part in listed.values())


def test_the_client_answers(programs: Path, address: str) -> None:
    script = (
        "from logitsieve.client import DecoderClient\n"
        f"reply = DecoderClient('{address}').topk([[1.0, 2.0]], 1)\n"
        "print(reply.ids.tolist(), reply.logits.tolist())"
    )
    assert run(programs / "python", "-c", script).strip() == "[[7]] [[3.0]]"
    assert "error: " in run(
        programs / "logitsieve", "query", "models", "--address", "127.0.0.1:1", code=1
    )


HELP = """
from typer.testing import CliRunner
from logitsieve.cli.app import COMMANDS, app
for name in COMMANDS:
    print(CliRunner().invoke(app, [name, "--help"]).output)
"""
CALLS = """
import sys
from logitsieve.cli import main
for line in sys.argv[1:]:
    sys.argv = ["logitsieve", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, file=sys.stderr)
"""
OPTIONS = {
    "train": "--loss-option",
    "capture": "--huggingface",
    "build": "--target-precision",
    "tune": "--minutes",
    "evaluate": "--max-rows",
    "inspect": "--min-precision",
    "verify": "--json",
    "prune": "--keep",
    "serve": "--config",
    "query": "--temperature",
    "admin": "--drain-s",
}
EXTRAS = {
    "build --weight W --contexts H --out m/1": "builder",
    "capture --module m.py:f --out c": "builder",
    f"evaluate {INDEX} --contexts H.npy": "builder",
    "train --out r --losses": "training",
    "train --out r --text t": "training",
    "serve": "server",
    f"verify {INDEX}": "server",
    "prune m": "server",
}


def test_the_help_needs_no_extra_and_a_command_says_which_it_needs(programs: Path) -> None:
    shown = run(programs / "python", "-c", HELP)
    for name, option in OPTIONS.items():
        text = shown.partition(f"Usage: root {name} ")[2].partition("Usage: ")[0]
        assert option in text, shown
        assert f"Example: logitsieve {name}" in text
    said = "".join(
        rf"error: .*pip install 'logitsieve\[{e}\] @ file:.*\n1\n" for e in EXTRAS.values()
    )
    assert re.fullmatch(said, run(programs / "python", "-c", CALLS, *EXTRAS))


@pytest.mark.parametrize("how", ["linked", INSTALLED])
def test_the_server_extra_opens_an_index(how: str, wheel: Path, tmp_path: Path) -> None:
    what = wheel if how == "linked" else REPOSITORY
    programs = install(how, tmp_path, what, "server")
    assert "escalate" in run(programs / "logitsieve", "inspect", INDEX)
    assert "--model-repository" in run(programs / "logitsieve", "serve", "--help")
    run(programs / "python", "-c", "import torch", code=1)
    ports = "--port", "0", "--http-port", "0", "--no-admin"
    shown = run(
        programs / "logitsieve",
        "serve",
        "--console",
        "--model-repository",
        INDEX.parents[1],
        *ports,
        code=1,
    )
    assert "pip install 'logitsieve[console] @ file:" in shown


def test_the_readme_installs_what_is_there() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert "\n    pip install -c constraints.txt -e '.[training]' " in text
    named = set(re.findall(r"\[(\w+)\](?!\()", text.partition("## Try it")[2]))
    assert {"server", "builder", "llamacpp", "gpu"} <= named
    assert named <= set(settings["project"]["optional-dependencies"])
