"""Change decision code at one place and see whether its tests notice: `make mutants`.

A mutant differs from the tree by one comparison, operator, `not`, number or boolean. It exists only
in the memory of a forked process, which runs the test files that name its module. tests/mutants.md
lists those that no test can notice.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import unified_diff
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "core/logitsieve/decoding", "core/logitsieve/evaluation", "core/logitsieve/heads",
    "core/logitsieve/index", "server/logitsieve/server/precision",
    "server/logitsieve/server/scheduling", "server/logitsieve/server/security",
    "training/logitsieve/training/losses",
)  # fmt: skip
WARM = "numpy", "numba", "torch", "logitsieve.kernels.sketch.sketch"
MARKED = "not system and not gpu and not ray and not exhaustive"
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
# Messages, annotations and invariants; a kernel is compiled from its file.
SKIPPED = ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom
SKIPPED_FIELDS = "annotation", "returns", "decorator_list"

Mutate = Callable[[], None]


def mutations(
    node: ast.AST, statement: ast.stmt | None = None
) -> Iterator[tuple[ast.stmt, Mutate]]:
    """Yield each place that can be changed: its statement, and the change, made in place."""
    decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", [])))
    if isinstance(node, SKIPPED) or "kernel" in decorators or "inline" in decorators:
        return
    if isinstance(node, ast.stmt):
        statement = node
    if statement is not None:
        yield from ((statement, change) for change in _changes(node))
    for name, value in ast.iter_fields(node):
        if name not in SKIPPED_FIELDS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from mutations(child, statement)


def _changes(node: Any) -> Iterator[Mutate]:
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            yield partial(node.ops.__setitem__, place, SWAPS[type(op)]())
    elif type(getattr(node, "op", None)) in SWAPS:
        yield partial(setattr, node, "op", SWAPS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield partial(setattr, node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield partial(setattr, node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        small = isinstance(node.value, int) and abs(node.value) < 100
        others = (node.value + 1, node.value - 1) if small else (2 * node.value, node.value / 2)
        for other in others:
            yield partial(setattr, node, "value", type(node.value)(other))


class Mutant:
    """One change of one file; a finder and loader of the changed module."""

    def __init__(self, path: Path, place: int) -> None:
        self.path, self.tree = path, ast.parse(path.read_bytes())
        self.module = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
        if place < 0:
            return  # unchanged, to see that the tests pass
        statement, change = list(mutations(self.tree))[place]
        before = ast.unparse(statement).splitlines()
        change()
        ast.fix_missing_locations(self.tree)
        diff = unified_diff(before, ast.unparse(statement).splitlines(), n=0, lineterm="")
        changed = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
        self.text = "\n    ".join((f"{path.relative_to(ROOT)}:{statement.lineno}", *changed))

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != self.module:
            return None
        loader = _Loader(name, str(self.path))
        loader.tree = self.tree
        return spec_from_file_location(name, self.path, loader=loader)


class _Loader(SourceFileLoader):
    tree: ast.Module

    def get_code(self, fullname: str) -> Any:
        return compile(self.tree, self.path, "exec")


def files_that_name(path: Path) -> list[str]:
    """Return the test files of a module: those of its name, and those that import from it."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
    own, others = list(ROOT.glob(f"tests/**/{path.parent.name}/test_{path.name}")), []
    for file in ROOT.glob("tests/**/test_*.py"):
        if file not in own and f"{module} import" in file.read_text(encoding="utf-8"):
            others.append(file)
    return [str(file) for file in (*own, *sorted(others, key=lambda file: file.stat().st_size))]


def passes(mutant: Mutant, files: Sequence[str], seconds: int) -> bool:
    """True if the tests pass within `seconds` of CPU time, in a process of their own."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == pytest.ExitCode.OK
    sys.meta_path.insert(0, mutant)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.alarm(30 * seconds)  # for tests that wait
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    options = "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0", "-m", MARKED
    os._exit(pytest.main([*options, *files]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", default="", help="a part of the paths of the files to change")
    parser.add_argument("--seconds", type=int, default=120, help="of CPU time for one mutant")
    asked = parser.parse_args()
    paths = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))
    paths = [path for path in paths if asked.only in str(path.relative_to(ROOT))]
    places = [
        (path, place) for path in paths
        for place, _ in enumerate(mutations(ast.parse(path.read_bytes())))
    ]  # fmt: skip
    for name in WARM:
        importlib.import_module(name)
    chosen = random.Random(asked.seed).sample(places, min(asked.count, len(places)))
    usable, killed, judged = dict[Path, bool](), 0, 0
    for path, place in chosen:
        mutant, files = Mutant(path, place), files_that_name(path)
        if path not in usable:
            usable[path] = bool(files) and passes(Mutant(path, -1), files, asked.seconds)
        if not usable[path]:
            print(f"not judged, as its tests are missing, slow or fail: {mutant.text}", flush=True)
            continue
        survives = passes(mutant, files, asked.seconds)
        judged, killed = judged + 1, killed + (not survives)
        if survives:
            print(f"survives: {mutant.text}", flush=True)
    print(f"{killed} of {judged} killed; {len(places)} places to change; seed {asked.seed}")


if __name__ == "__main__":
    main()
