"""A GPU kernel, plan or head stands in every place that adding one needs; a failure names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from logitsieve.gpu.heads import GPU_HEADS
from logitsieve.heads import HEADS

ROOT = Path(__file__).parents[2]
GPU = ROOT / "core/logitsieve/gpu"


def words(files: Iterator[Path]) -> set[str]:
    """Every name in those files."""
    return {word for file in files for word in re.findall(r"\w+", file.read_text("utf-8"))}


def defined(folder: str, kind: type[ast.AST], ending: str) -> list[str]:
    """Functions or classes of that ending at the top of a folder's files."""
    bodies = [ast.parse(file.read_text("utf-8")).body for file in (GPU / folder).glob("*.py")]
    names = [
        str(getattr(node, "name", "")) for body in bodies for node in body if type(node) is kind
    ]
    return sorted(name for name in names if name.endswith(ending))


KERNELS = defined("kernels", ast.FunctionDef, "_kernel")
PLANS = [name for name in defined("plans", ast.ClassDef, "Plan") if name != "LaunchPlan"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_launched_by_a_plan(kernel: str) -> None:
    assert kernel in words((GPU / "plans").glob("*.py")), f"core/logitsieve/gpu/plans: {kernel}"


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_is_tested_and_used_by_a_head(plan: str) -> None:
    tested, used = (ROOT / "tests/gpu").glob("*/test_*.py"), GPU.glob("**/*.py")
    assert plan in words(tested), f"a test in tests/gpu/plans: {plan}"
    names = [word for file in used for word in re.findall(r"\w+", file.read_text("utf-8"))]
    assert names.count(plan) > 1, f"core/logitsieve/gpu/heads: {plan}"


@pytest.mark.parametrize("head", GPU_HEADS)
def test_a_head_has_its_twin_on_the_host_and_its_row_in_the_docs(head: str) -> None:
    assert head in HEADS, f"core/logitsieve/heads: {head}"
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/gpu.md").read_text("utf-8"), re.MULTILINE)
    assert any(f"`{head}`" in row for row in rows), f"docs/gpu.md, which heads: {head}"
