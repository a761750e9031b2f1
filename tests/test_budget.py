"""How large the house may be: `pytest -s tests/test_budget.py` prints what it counts."""

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
NOT_SOURCE = {"tests", "tools", "benchmarks", "demo", "examples"}
LIMITS = {
    "files of source": 327,
    "lines of source": 47_476,
    "lines of core/": 20_615,
    "lines of tests/": 45_536,
    "lines of tools/": 4_837,
    "lines of benchmarks/": 8_158,
}
LONGEST = 70  # lines of a function of the source


def python_of(*folders: str) -> list[Path]:
    """Return the Python files of top-level folders, all but generated ones."""
    files = (path for folder in folders for path in REPOSITORY.glob(f"{folder}/**/*.py"))
    return [path for path in files if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


def lines(files: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in files)


FOLDERS = {path.name for path in REPOSITORY.glob("[!.]*") if path.is_dir()}
SOURCE = python_of(*(FOLDERS - NOT_SOURCE))


def test_the_house_does_not_grow() -> None:
    found = {"files of source": len(SOURCE), "lines of source": lines(SOURCE)}
    for folder in ("core", "tests", "tools", "benchmarks"):
        found[f"lines of {folder}/"] = lines(python_of(folder))
    assert found.keys() == LIMITS.keys()
    print()
    for name, count in found.items():
        print(f"{name:21} {count:7,} of {LIMITS[name]:,}")
    over = {name: count for name, count in found.items() if count > LIMITS[name]}
    assert not over, f"look for what to remove, or raise the number with a reason: {over}"


def test_functions_are_short() -> None:
    long = set()
    for path in SOURCE:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= LONGEST:
                    long.add(f"{path.relative_to(REPOSITORY)}:{node.name}")
    assert not long, "look for the second idea in it"
