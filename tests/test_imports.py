"""Imports go one way: cli -> server | client | index_builder -> ... -> api."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tests.index.samples import write_tiny

REPOSITORY = Path(__file__).parents[1]
SOURCES = sorted(REPOSITORY.glob("*/logitsieve/*/**/*.py"))

# What each package may import, besides all that those may import themselves.
DIRECT: dict[str, set[str]] = {
    "api": set(),
    "v1": {"api"},
    "utils": {"api"},
    "kernels": {"utils"},
    "llamacpp": {"utils"},
    "heads": {"kernels"},
    "index": {"heads"},
    "evaluation": {"utils"},
    "decoding": {"index", "evaluation"},
    "gpu": {"decoding"},
    "training": {"index_builder"},
    "index_builder": {"decoding", "llamacpp"},
    "client": {"utils", "llamacpp", "v1"},
    "server": {"decoding", "gpu", "v1"},
    "console": {"server"},
    "ray": {"server", "client", "index_builder"},
    "cli": {"ray", "training"},
}
# The rooms of `kernels`, each of which may import those before it.
KERNEL_ROOMS = [
    *(
        "compile",
        "pool",
        "simd",
        "rows",
        "topk",
        "sketch",
        "screen",
        "sampling",
        "intervals",
        "retrieval",
    )
]
# The rooms of `server`, each of which may import those before it and files beside them.
SERVER_ROOMS = [*("scheduling", "security", "models", "precision", "rpc", "kserve", "http", "app")]
# Heavy libraries, and the packages whose files may import them.
CONFINED: dict[str, set[str]] = {
    "numba": {"kernels", "llamacpp", "training"},
    "gguf": {"llamacpp"},
    "llvmlite": {"kernels", "training"},
    "torch": {"index_builder", "training", "cli", "client", "gpu", "utils"},
    "triton": {"gpu"},
    "transformers": {"index_builder", "client"},
    "faiss": {"index_builder"},
    "grpc": {"client", "server", "console", "v1"},
    "starlette": {"server", "console"},
    "uvicorn": {"server"},
    "uvloop": {"server", "ray"},
    "ray": {"ray"},
    "jinja2": {"llamacpp", "console"},
    "typer": {"cli"},
    "rich": {"cli"},
    "threadpoolctl": {"index_builder"},
}


def reachable(package: str) -> set[str]:
    below = DIRECT[package]
    return below.union(*(reachable(other) for other in below))


def package_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).parts[2]


def imports(path: Path) -> Iterator[str]:
    """Absolute names of all that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_file_imports_only_what_its_package_may(path: Path) -> None:
    package = package_of(path)
    allowed = reachable(package) | {package, "version"}
    for name in imports(path):
        top, _, rest = name.partition(".")
        assert top not in {"tests", "demo", "benchmarks", "proofs"}, name
        assert package in CONFINED.get(top, {package}), name
        if top == "logitsieve" and rest:
            assert rest.split(".")[0] in allowed, f"{package} may not import {name}"


KERNELS = sorted(REPOSITORY.glob("core/logitsieve/kernels/**/*.py"))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_rooms_of_the_kernels_import_only_those_before_them(path: Path) -> None:
    room = path.relative_to(REPOSITORY / "core/logitsieve/kernels").parts[0].removesuffix(".py")
    for name in imports(path):
        if name.startswith("logitsieve.kernels."):
            other = name.split(".")[2]
            assert KERNEL_ROOMS.index(other) <= KERNEL_ROOMS.index(room), name


SERVER = sorted(REPOSITORY.glob("server/logitsieve/server/**/*.py"))


@pytest.mark.parametrize("path", SERVER, ids=lambda path: path.stem)
def test_rooms_of_the_server_import_only_those_before_them(path: Path) -> None:
    room = path.relative_to(REPOSITORY / "server/logitsieve/server").parts[0].removesuffix(".py")
    allowed = SERVER_ROOMS[: SERVER_ROOMS.index(room) + 1] if room in SERVER_ROOMS else []
    for name in imports(path):
        other = name.removeprefix("logitsieve.server.").split(".")[0]
        if name.startswith("logitsieve.server.") and other in SERVER_ROOMS:
            assert room == "__init__" or other in allowed, name


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("client/logitsieve/**/*.py")), ids=str)
def test_only_the_adapter_of_hugging_face_imports_torch_in_the_client(path: Path) -> None:
    tops = {name.partition(".")[0] for name in imports(path)}
    assert path.name.startswith("huggingface") or not tops & {"torch", "transformers"}


def test_every_package_has_its_rule() -> None:
    assert {package_of(path) for path in SOURCES} == DIRECT.keys()


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_the_client_loads_neither_torch_nor_a_head() -> None:
    loaded = modules_after("import logitsieve.client")
    assert not loaded & {"torch", "numba", "faiss", "logitsieve.heads", "logitsieve.index"}


def test_the_command_loads_no_package_for_its_help() -> None:
    loaded = modules_after(
        "from typer.testing import CliRunner\n"
        "from logitsieve.cli.app import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0"
    )
    assert not loaded & {"torch", "numba", "faiss", "grpc", "numpy", "logitsieve.index"}


def test_wrong_arguments_are_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "W.npy", np.ones((8, 4), np.float32))
    build = ["build", "--weight", f"{tmp_path}/W.npy", "--contexts", "none.npy", "--out"]
    capture = ["capture", "--out", f"{tmp_path}/out", "--text", f"{tmp_path}/W.npy"]
    commands = [
        [*build, "models/lm"],
        [*build, "models/lm/1", "--heads", "other"],
        [*build, "models/lm/1"],
        [*capture, "--huggingface", "none"],
        [*capture, "--module", "none.py:load"],
    ]
    loaded = modules_after(
        "from typer.testing import CliRunner\n"
        "from logitsieve.cli.app import app\n"
        f"codes = [CliRunner().invoke(app, each).exit_code for each in {commands!r}]\n"
        "assert codes == [2] * len(codes), codes"
    )
    assert not loaded & {"torch", "faiss", "transformers"}


@pytest.mark.parametrize("package", ["server.app", "index", "decoding", "evaluation"])
def test_serving_loads_neither_torch_nor_faiss(package: str) -> None:
    assert not modules_after(f"import logitsieve.{package}") & {"torch", "faiss", "matplotlib"}


@pytest.mark.parametrize("package", ["server", "training"])
def test_a_package_whose_names_are_imported_late_has_no_others(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'logitsieve.{package}' has no attribute 'other'"):
        _ = import_module(f"logitsieve.{package}").other


def test_answering_loads_neither_torch_nor_faiss(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "demo" / "1")
    loaded = modules_after(
        "from logitsieve.decoding import LocalDecoder\n"
        "from logitsieve.index import open_index\n"
        f"LocalDecoder(open_index({str(path)!r})).topk([[1, 2, 3]], 2)"
    )
    assert "numba" in loaded
    assert not loaded & {"torch", "faiss", "matplotlib", "logitsieve.index_builder"}
