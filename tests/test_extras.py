"""The extras of pyproject.toml bring what is imported, and a build needs no torch."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest

from logitsieve.index import open_index
from tests.synthetic import make_hidden, make_softmax

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# The extras with which the files of a folder run, or one file; the longest path counts.
EXTRAS = {
    "proto": "",
    "core": "server",
    "core/logitsieve/api": "",
    "core/logitsieve/utils": "",
    "core/logitsieve/gpu": "gpu",
    "core/logitsieve/grammar": "server grammar",
    "core/logitsieve/llamacpp": "llamacpp",
    "core/logitsieve/llamacpp/ik.py": "ik",
    "index_builder": "builder",
    "index_builder/logitsieve/index_builder/capture/pytorch.py": "training",
    "index_builder/logitsieve/index_builder/capture/huggingface.py": "builder huggingface",
    "index_builder/logitsieve/index_builder/capture/llamacpp.py": "builder llamacpp",
    "index_builder/logitsieve/training": "training",
    "index_builder/logitsieve/training/vocabulary.py": "",
    "server": "server",
    "server/logitsieve/server/kserve": "kserve",
    "server/logitsieve/server/tracing.py": "otel",
    "server/logitsieve/console": "console",
    "server/logitsieve/completions": "llamacpp",
    "client": "",
    "client/logitsieve/client": "",
    "client/logitsieve/client/huggingface": "huggingface",
    "client/logitsieve/client/llamacpp": "llamacpp",
    "server/logitsieve/ray": "ray",
    "server/logitsieve/ray/remote.py": "server",
    "client/logitsieve/__main__.py": "training",
    "client/logitsieve/cli": "training",
    "client/logitsieve/cli/output.py": "",
    "client/logitsieve/cli/options.py": "",
    "demo": "demo",
    "demo/gguf.py": "demo llamacpp",
    "demo/published.py": "demo llamacpp",
    "demo/truth.py": "demo llamacpp",
    "benchmarks": "bench",
    "benchmarks/gpu.py": "bench gpu",
    "examples": "server",
    "examples/arrays_to_index.py": "builder",
    "examples/huggingface_generate.py": "builder huggingface",
    "examples/kserve_infer.py": "kserve",
    "examples/train_gguf.py": "training llamacpp",
    "deploy": "server",
    "docs": "docs",
    "proofs": "dev",
    "tests": "dev",
    "tests/benchmarks": "dev bench",
    "tests/ray": "dev ray",
    "tests/test_docs.py": "dev docs bench",
    "tools": "dev",
    "tools/fuzz/__main__.py": "dev fuzz",
    "tools/fuzz/process.py": "dev fuzz",
}
# What a package that an extra names brings, as part of its own interface.
WITH = {
    "numba": {"llvmlite"},
    "pytest": {"packaging"},
    "ray": {"fastapi"},
    "scikit-learn": {"sklearn"},
    "transformers": {"tokenizers"},
    "uvicorn": {"h11"},
}
OUTSIDE = {"demo", "benchmarks", "examples", "tests", "tools", "proofs", "docs"}
ROOTS = sorted({each.partition("/")[0] for each in EXTRAS})
FILES = [path for root in ROOTS for path in sorted(REPOSITORY.glob(f"{root}/**/*.py"))]
DISTRIBUTIONS = packages_distributions()


def extras_of(path: Path) -> str:
    name = path.relative_to(REPOSITORY).as_posix()
    return EXTRAS[max((each for each in EXTRAS if name.startswith(each)), key=len)]


@cache
def brought(extras: str) -> set[str]:
    """Names of what is installed by `logitsieve[...]`, without what those packages require."""
    found, texts = set[str](), [*PROJECT["dependencies"]]
    texts += [text for extra in extras.split() for text in PROJECT["optional-dependencies"][extra]]
    for text in texts:
        name, others = re.match(r"([\w-]+)(?:\[(.*?)\])?", text).groups()  # type: ignore[union-attr]
        if name == "logitsieve":
            found |= brought(others.replace(",", " "))
        else:
            found |= {plain(name)} | WITH.get(plain(name), set())
    return found


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


def imports(path: Path) -> Iterator[str]:
    """Names of all modules that a file imports, but not for types alone."""
    waiting: list[ast.AST] = [ast.parse(path.read_bytes())]
    while waiting:
        match waiting.pop():
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=rest):
                waiting += rest
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case node:
                waiting += ast.iter_child_nodes(node)


@cache
def own_files() -> dict[str, Path]:
    """Each module of the repository by its name."""
    found = {}
    for path in FILES:
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        parts = parts[1:] if parts[1] == "logitsieve" else parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


@pytest.mark.parametrize("root", ROOTS)
def test_the_extras_of_a_file_bring_what_it_imports(root: str) -> None:
    """Its own imports; those of the package that a program uses have to be brought as well."""
    lacking = []
    for path in FILES:
        if path.relative_to(REPOSITORY).parts[0] != root:
            continue
        there = brought(extras_of(path))
        for name in imports(path):
            top = name.partition(".")[0]
            if (own := own_files().get(name)) is not None:
                needed = brought(extras_of(own)) if root in OUTSIDE else set()
            elif top in sys.stdlib_module_names or top in {"logitsieve", *OUTSIDE}:
                continue
            else:
                names = {plain(each) for each in DISTRIBUTIONS.get(top, [top])}
                needed = set() if names & there else names
            if needed - there:
                lacking.append(f"{path.relative_to(REPOSITORY)}: {name}: {needed - there}")
    assert not lacking, "\n".join(lacking)


def test_pages_install_with_the_constraints_and_editable() -> None:
    """The name alone is no registered package, and a copy would take the checkout's place."""
    lines = [
        f"{page.relative_to(REPOSITORY)}: {line}"
        for pattern in ("*.md", "docs/**/*.md", "demo/*.md", "benchmarks/*.md", "examples/*.*")
        for page in sorted(REPOSITORY.glob(pattern))
        for line in re.findall(r"pip install.*\[.*", page.read_text(encoding="utf-8"))
    ]
    right = re.compile(r"pip install -c constraints\.txt -e '\.\[([\w,]+)\]'")
    assert [line for line in lines if not right.search(line)] == []
    named = {each for line in lines for each in right.search(line)[1].split(",")}  # type: ignore[index]
    assert named <= PROJECT["optional-dependencies"].keys()


def test_a_build_and_the_demo_install_no_torch() -> None:
    assert "torch" not in brought("demo builder llamacpp console kserve ray otel")
    assert "torch" in brought("training") & brought("huggingface") & brought("gpu")


def without_torch(*steps: str) -> str:
    """What Python says to steps of code where `import torch` fails."""
    code = "\n".join(("import sys", "sys.modules['torch'] = None", *steps))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stderr


def command(*arguments: object, code: int = 0) -> str:
    """A step that runs the program as the shell does."""
    return (
        "from logitsieve.cli import main\n"
        f"sys.argv[1:] = {[*map(str, arguments)]}\n"
        "try: main()\n"
        f"except SystemExit as ended: assert (ended.code or 0) == {code}, ended.code"
    )


def test_the_demo_and_a_build_with_a_screen_load_no_torch(tmp_path: Path) -> None:
    softmax, light = make_softmax(), "--clusters 6 --rounds 2 --steps 5 --kmeans-iterations 3"
    np.save(tmp_path / "W.npy", softmax.weight)
    np.save(tmp_path / "H.npy", np.float32(make_hidden(600)))
    given = "--weight", tmp_path / "W.npy", "--contexts", tmp_path / "H.npy", *light.split()
    heads, out = "full,screen,sketch,svd,lsh,frequency", tmp_path / "lm" / "1"
    without_torch(
        "from tests.brief import brief_timings",
        "(brief := brief_timings()).__enter__()",
        "import demo.run, demo.warm, demo.gguf",
        "import logitsieve.index_builder.capture.llamacpp, logitsieve.index_builder.pipeline",
        command("build", *given, "--heads", heads, "--out", out),
        command("evaluate", out, "--contexts", tmp_path / "H.npy"),
    )
    index = open_index(out)
    assert index.head("screen").topk(make_hidden(4), 3).ids.shape == (4, 3)


def test_what_needs_torch_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    (tmp_path / "config.json").write_text("{}")
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("one two")
    asked = {
        "training": ["capture", "--module", tmp_path / "model.py:load", "--out", out],
        "huggingface": ["capture", "--huggingface", tmp_path, "--text", text, "--out", out],
    }
    trains = ["train", "--text", text, "--out", out]
    said = without_torch(*(command(*each, code=1) for each in (*asked.values(), trains)))
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    for line, extra in zip(lines, (*asked, "training"), strict=True):
        assert re.match(rf"error: torch is not installed: .*'\.\[{extra}\]'", line)
