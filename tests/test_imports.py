"""Imports go one way: cli -> server | client | index_builder -> ... -> api."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import logitsieve
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
    "grammar": {"utils"},
    "decoding": {"index", "evaluation"},
    "gpu": {"decoding"},
    "training": {"index_builder"},
    "index_builder": {"decoding", "llamacpp"},
    "client": {"kernels", "llamacpp", "grammar", "v1"},
    "server": {"decoding", "gpu", "v1"},
    "console": {"server"},
    "completions": {"server", "client"},
    "ray": {"server", "client", "index_builder"},
    "cli": {"ray", "training", "completions"},
}
# The rooms of `kernels`, each of which may import those before it.
KERNEL_ROOMS = [
    *("compile", "pool", "simd", "rows", "topk", "sampling", "sketch", "screen"),
    "retrieval",
]
# The rooms of `server`, each of which may import those before it and files beside them.
SERVER_ROOMS = [
    *("scheduling", "security", "models", "metrics", "tracing", "precision", "rpc", "kserve"),
    *("http", "app"),
]
# Heavy libraries, and the packages whose files may import them.
CONFINED: dict[str, set[str]] = {
    "numba": {"kernels", "llamacpp", "training"},
    "gguf": {"llamacpp"},
    "llvmlite": {"kernels", "training"},
    "llguidance": {"grammar"},
    "torch": {"index_builder", "training", "cli", "client", "gpu", "utils"},
    "triton": {"gpu"},
    "transformers": {"index_builder", "client"},
    "faiss": {"training"},
    "grpc": {"client", "server", "console", "v1"},
    "starlette": {"server", "console", "completions"},
    "opentelemetry": {"server"},
    "uvicorn": {"server"},
    "uvloop": {"server", "completions", "ray"},
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


def test_a_file_imports_only_what_its_package_may() -> None:
    for path in SOURCES:
        package = package_of(path)
        allowed = reachable(package) | {package, "version"}
        for name in imports(path):
            top, _, rest = name.partition(".")
            assert top not in {"tests", "tools", "demo", "benchmarks", "proofs"}, f"{path}: {name}"
            assert package in CONFINED.get(top, {package}), f"{path}: {name}"
            if top == "logitsieve" and rest:
                assert rest.split(".")[0] in allowed, f"{path} may not import {name}"


@pytest.mark.parametrize(
    ("package", "rooms"),
    [("core/logitsieve/kernels", KERNEL_ROOMS), ("server/logitsieve/server", SERVER_ROOMS)],
)
def test_rooms_import_only_those_before_them(package: str, rooms: list[str]) -> None:
    folder, prefix = REPOSITORY / package, package.partition("/")[2].replace("/", ".") + "."
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        allowed = rooms[: rooms.index(room) + 1] if room in rooms else []
        for name in imports(path):
            other = name.removeprefix(prefix).split(".")[0]
            if room != "__init__" and name.startswith(prefix) and other in rooms:
                assert other in allowed, f"{path}: {name}"


def test_only_the_adapter_of_hugging_face_imports_torch_in_the_client() -> None:
    for path in REPOSITORY.glob("client/logitsieve/client/**/*.py"):
        tops = {name.partition(".")[0] for name in imports(path)}
        assert path.name.startswith("huggingface") or not tops & {"torch", "transformers"}, path


def test_every_package_has_its_rule() -> None:
    assert {package_of(path) for path in SOURCES} == DIRECT.keys()


def modules_after(*steps: str) -> list[set[str]]:
    """The names of all modules that a new process has loaded after each step."""
    script = "import sys\n" + "".join(f"{code}\nprint(*sys.modules)\n" for code in steps)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=280
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_the_client_and_the_builder_load_no_large_package() -> None:
    heavy = {"torch", "numba", "faiss", "safetensors", "prometheus_client", "logitsieve.heads"}
    client, both = modules_after("import logitsieve.client", "import logitsieve.index_builder")
    assert not client & {*heavy, "logitsieve.index", "logitsieve.kernels"}
    assert not both & {"torch", "faiss", "numba"}


def test_importing_all_of_it_loads_nothing_until_a_name_is_read() -> None:
    before, loaded, read = modules_after(
        "", "import logitsieve as ls; assert 'open_index' in dir(ls)", "ls.DecoderClient"
    )
    assert {name for name in loaded if name.startswith("logitsieve")} == {"logitsieve"}
    assert not (loaded - before) & {"numpy", "numba", "grpc", "importlib.metadata"}
    assert "logitsieve.client" in read
    assert not read & {"numba", "logitsieve.index"}
    for name in logitsieve.__all__:
        assert getattr(logitsieve, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = logitsieve.nothing
    assert {*logitsieve.__all__} <= {*dir(logitsieve)}


def test_help_and_refusals_load_no_large_package(tmp_path: Path) -> None:
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
    helped, refused = modules_after(
        "from typer.testing import CliRunner\n"
        "from logitsieve.cli.app import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0",
        f"codes = [CliRunner().invoke(app, each).exit_code for each in {commands!r}]\n"
        "assert codes == [2] * len(codes), codes",
    )
    assert not helped & {"torch", "numba", "faiss", "grpc", "numpy", "logitsieve.index"}
    assert not refused & {"torch", "faiss", "transformers"}


def test_neither_serving_nor_answering_loads_torch_or_faiss(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "demo" / "1")
    serving, answering = modules_after(
        "import logitsieve.server.app, logitsieve.decoding",
        "from logitsieve.index import open_index\n"
        f"logitsieve.decoding.LocalDecoder(open_index({str(path)!r})).topk([[1, 2, 3]], 2)",
    )
    assert {"logitsieve.index", "logitsieve.evaluation"} <= serving
    assert "numba" in answering
    assert not answering & {"torch", "faiss", "matplotlib", "logitsieve.index_builder"}


@pytest.mark.parametrize("package", ["server", "training"])
def test_a_package_whose_names_are_imported_late_has_no_others(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'logitsieve.{package}' has no attribute 'other'"):
        _ = import_module(f"logitsieve.{package}").other
