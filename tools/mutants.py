"""Change decision code at one place and see whether its tests notice: `make mutants`.

A mutant differs from the tree by one comparison, operator, `not`, number or boolean. It exists only
in the memory of a forked process. That runs the tests of its module that reach its line; if it
changes more than functions, all of them, with the changed file imported. tools/mutants.md lists
those that no test can notice.
"""

import argparse
import ast
import gc
import importlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from difflib import unified_diff
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
KERNELS = "core/logitsieve/kernels"  # only functions that are not compiled
FOLDERS = (
    "client/logitsieve/client", "core/logitsieve/decoding", "core/logitsieve/evaluation",
    "core/logitsieve/heads", "core/logitsieve/index",
    f"{KERNELS}/sampling", f"{KERNELS}/screen", f"{KERNELS}/sketch", f"{KERNELS}/topk",
    "server/logitsieve/server/models", "server/logitsieve/server/precision.py",
    "server/logitsieve/server/scheduling", "server/logitsieve/server/security.py",
    "index_builder/logitsieve/training/losses",
)  # fmt: skip
WARM = "numpy", "numba", "logitsieve.kernels.sketch.sketch"
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
COMPILED = "kernel(", "inline", "splice", "intrinsic", "c_function"
DEFINED = ast.FunctionDef, ast.ClassDef

Mutate = Callable[[], None]


def mutations(
    node: ast.AST, statement: ast.stmt | None = None
) -> Iterator[tuple[ast.stmt, Mutate]]:
    """Yield each place that can be changed: its statement, and the change, made in place."""
    decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", [])))
    if isinstance(node, SKIPPED) or any(word in decorators for word in COMPILED):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
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
        small = not node.value or (isinstance(node.value, int) and abs(node.value) < 100)
        others = (node.value + 1, node.value - 1) if small else (2 * node.value, node.value / 2)
        for other in others:
            yield partial(setattr, node, "value", type(node.value)(other))


def places_of(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the number of each change of a file, among `mutations` of it, and its line."""
    tree = ast.parse(path.read_bytes())
    for place, (statement, _) in enumerate(mutations(tree)):
        if KERNELS not in str(path) or isinstance(statement, DEFINED) or statement not in tree.body:
            yield place, statement.lineno


class Mutant:
    """One change of one file; a finder and loader of the changed module."""

    def __init__(self, path: Path, place: int) -> None:
        tree, self.path = ast.parse(path.read_bytes()), str(path)
        self.module = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
        statement, change = list(mutations(tree))[place]
        self.lines = range(statement.lineno, (statement.end_lineno or 0) + 1)
        self.statement = statement
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        self.in_function = any(statement in list(ast.walk(node))[1:] for node in functions)
        before = ast.unparse(statement).splitlines()
        change()
        diff = unified_diff(before, ast.unparse(statement).splitlines(), n=0, lineterm="")
        changed = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
        self.text = "  ".join((f"{path.relative_to(ROOT)}:{statement.lineno}", *changed))
        self.code = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exchange(self, functions: Sequence[FunctionType]) -> None:
        """Change functions and constants that are in memory."""
        codes = functions_of(self.code)
        for function in functions:
            if function.__code__.co_filename == self.path:
                key = function.__code__.co_qualname, function.__code__.co_firstlineno
                function.__code__ = codes.get(key, function.__code__)
        if not self.in_function and isinstance(self.statement, ast.Assign):
            before = vars(sys.modules[self.module])
            after = before.copy()
            exec(compile(ast.Module([self.statement], []), self.path, "exec"), after)
            changed = {name for name in before if after[name] is not before[name]}
            for module in list(sys.modules.values()):
                for name in changed & vars(module).keys():
                    if vars(module)[name] is before[name]:
                        setattr(module, name, after[name])

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != self.module:
            return None
        loader = _Loader(name, self.path)
        loader.code = self.code
        return spec_from_file_location(name, self.path, loader=loader)


class _Loader(SourceFileLoader):
    code: CodeType

    def get_code(self, fullname: str) -> CodeType:
        return self.code


def functions_of(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return a code object and all within it by their name and line."""
    found = {(code.co_qualname, code.co_firstlineno): code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= functions_of(constant)
    return found


class Judge:
    """A plugin that runs collected tests for mutants, each in a process forked for it."""

    def __init__(self, mutants: Sequence[Mutant], log: "Log", reached: Path) -> None:
        self.mutants, self.log, self.reached = mutants, log, reached

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not self.reached.exists():
            in_child(partial(self._trace, session.items))
        reached = json.loads(self.reached.read_text(encoding="utf-8"))
        session.items.sort(key=lambda item: reached[item.nodeid]["seconds"])
        functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
        for mutant in sorted(self.mutants, key=lambda mutant: not mutant.in_function):
            lines = {*mutant.lines} if mutant.in_function else {0}
            items = [item for item in session.items if lines & {*reached[item.nodeid]["lines"]}]
            self.log.judge(mutant, partial(self._passes, mutant, items, functions))
        return True

    def _passes(
        self, mutant: Mutant, items: list[pytest.Item], functions: list[FunctionType]
    ) -> bool:
        mutant.exchange(functions)
        return all(run(item, after) for item, after in zip(items, [*items[1:], None], strict=True))

    def _trace(self, items: list[pytest.Item]) -> bool:
        """Write the lines of the file that each test reaches, if all tests pass."""
        reached, path = dict[str, dict[str, Any]](), self.mutants[0].path
        lines, shared, at = set[int](), set[int](), Path()

        def in_file(frame: FrameType, *_: object) -> Any:
            lines.add(frame.f_lineno)
            return in_file

        def anywhere(frame: FrameType, *_: object) -> Any:
            return in_file if frame.f_code.co_filename == path else None

        threading.settrace(anywhere)
        sys.settrace(anywhere)
        for item, after in zip(items, [*items[1:], None], strict=True):
            lines, began = {0}, time.process_time()
            if not run(item, after):
                return False
            if item.path != at:  # shared fixtures, made for its first test, are all tests'
                at, shared = item.path, lines
            seconds = time.process_time() - began
            reached[item.nodeid] = {"seconds": seconds, "lines": sorted(lines | shared)}
        sys.settrace(None)
        self.reached.write_text(json.dumps(reached), encoding="utf-8")
        return True


def run(item: pytest.Item, after: pytest.Item | None) -> bool:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
    return not item.session.testsfailed


class Log:
    """Outcomes in a file, a line for each mutant, from which a stopped run goes on."""

    def __init__(self, path: Path, seconds: int) -> None:
        self.path, self.seconds = path, seconds
        self.path.touch()

    def judge(self, mutant: Mutant, passes: Callable[[], bool]) -> None:
        ends = {0: "survives", -signal.SIGALRM: "waits"}
        outcome = ends.get(in_child(passes, self.seconds), "killed")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{outcome}: {mutant.text}\n")

    def outcomes(self, mutants: Sequence[Mutant]) -> dict[str, str]:
        """Return what is known of mutants, by their texts."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        known = {text: outcome for outcome, _, text in (line.partition(": ") for line in lines)}
        return {mutant.text: known[mutant.text] for mutant in mutants if mutant.text in known}


def in_child(work: Callable[[], bool], seconds: int | None = None) -> int:
    """Return 0 if `work` is True in a process of its own, within `seconds` of CPU time."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(3 * seconds)  # for tests that wait
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    try:
        os._exit(not work())
    finally:
        os._exit(1)


def run_pytest(tests: Sequence[Path], *plugins: object) -> bool:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0", "-m", MARKED]
    with TemporaryDirectory() as folder:
        paths = f"--basetemp={folder}/tests", *map(str, tests)
        return pytest.main([*options, *paths], plugins=plugins) == pytest.ExitCode.OK


def passes(mutant: Mutant, tests: Sequence[Path]) -> bool:
    """Run tests with the changed file imported."""
    sys.meta_path.insert(0, mutant)
    return run_pytest(tests)


def files() -> list[Path]:
    patterns = (place if place.endswith(".py") else f"{place}/**/*.py" for place in FOLDERS)
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def tests_of(path: Path) -> list[Path]:
    """Return the files of tests that begin with a file's name, or else all of its folder."""
    folder = next(Path(folder) for folder in FOLDERS if path.is_relative_to(ROOT / folder))
    tests = ROOT / "tests" / Path(*folder.parts[folder.parts.index("logitsieve") + 1 :])
    tests = tests.parent if tests.suffix else tests
    return sorted(tests.glob(f"**/test_{path.stem}*.py")) or [tests]


def files_that_name(mutant: Mutant) -> list[Path]:
    """Return the files of tests that import from a mutant's module, small ones first."""
    tests, wanted = ROOT.glob("tests/**/test_*.py"), f"{mutant.module} import"
    found = [path for path in tests if wanted in path.read_text(encoding="utf-8")]
    return sorted(found, key=lambda path: path.stat().st_size) or tests_of(Path(mutant.path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", default="", help="a part of path:line of what to change")
    parser.add_argument("--seconds", type=int, default=200, help="of CPU time for one mutant")
    parser.add_argument("--log", type=Path, default=None, help="a folder to go on from, if stopped")
    asked = parser.parse_args()
    places = [
        (path, place) for path in files() for place, line in places_of(path)
        if asked.only in f"{path.relative_to(ROOT)}:{line}"
    ]  # fmt: skip
    chosen = random.Random(asked.seed).sample(places, min(asked.count, len(places)))
    mutants = [Mutant(*each) for each in sorted(chosen)]
    with TemporaryDirectory() as fresh:
        folder = asked.log or Path(fresh)
        folder.mkdir(exist_ok=True)
        log = Log(folder / "outcomes", asked.seconds)
        done = log.outcomes(mutants)
        for path, same in groupby(mutants, lambda mutant: Path(mutant.path)):
            tests, new = tests_of(path), [mutant for mutant in same if mutant.text not in done]
            reached = folder / f"{path.parent.name}-{path.stem}.json"
            if new and in_child(partial(run_pytest, tests, Judge(new, log, reached))):
                print(f"tests of {path.relative_to(ROOT)} fail without a mutant")
        for name in WARM:
            importlib.import_module(name)
        for mutant in mutants:
            if mutant.text not in done and log.outcomes([mutant]).get(mutant.text) == "survives":
                log.judge(mutant, partial(passes, mutant, files_that_name(mutant)))
        outcomes = log.outcomes(mutants)
    killed = list(outcomes.values()).count("killed")
    for text, outcome in outcomes.items():
        if outcome != "killed":
            print(f"{outcome}: {text}")
    print(f"{killed} of {len(outcomes)} killed; {len(places)} places; seed {asked.seed}")


if __name__ == "__main__":
    main()
