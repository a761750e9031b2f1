"""Every constant is large enough, by a theorem that a weaker one fails."""

import os
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from proofs.__main__ import THEOREMS
from proofs.theorem import Theorem, gappa, growth, number, proven

REPOSITORY = Path(__file__).parents[2]
BY_NAME = pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.name)
NEEDS_GAPPA = pytest.mark.skipif(gappa() is None, reason="apt-get install gappa")


@BY_NAME
@NEEDS_GAPPA
def test_a_theorem_holds_in_some_of_its_cases(theorem: Theorem) -> None:
    """All comparisons of counts, on both sides if there are no others, and every ninth script."""
    checks = list(theorem.checks(theorem.value))
    assert all(check for check in checks if isinstance(check, bool))
    assert all(proven(check) for check in checks[::9] if isinstance(check, str))
    if theorem.slack < inf and all(isinstance(check, bool) for check in checks):
        assert not theorem.holds(theorem.weakened(theorem.value, theorem.slack))


@pytest.mark.exhaustive
@BY_NAME
@NEEDS_GAPPA
def test_a_theorem_holds_and_fails_for_a_weaker_constant(theorem: Theorem) -> None:
    assert theorem.holds(theorem.value)
    if theorem.slack < inf:
        assert not theorem.holds(theorem.weakened(theorem.value, theorem.slack))


@pytest.mark.exhaustive
@BY_NAME
@NEEDS_GAPPA
def test_no_hypotheses_contradict_one_another(theorem: Theorem) -> None:
    """Gappa would prove anything of them."""
    for check in list(theorem.checks(theorem.value))[::5]:
        if isinstance(check, str):
            assert not proven(f"{check.partition('->')[0]} -> unheard_of in [1, 2] }}")


def test_names_are_different_and_numbers_are_written_exactly() -> None:
    assert len({theorem.name for theorem in THEOREMS}) == len(THEOREMS)
    assert (number(0.75), number(-6)) == ("3b-2", "-6b0")
    with pytest.raises(ValueError, match="not a multiple"):
        number(growth(1))


@NEEDS_GAPPA
def test_a_script_that_cannot_be_read_and_a_hint_that_is_no_equality_are_refused() -> None:
    with pytest.raises(RuntimeError, match="not trivially equal"):
        proven("x = f(x_); { x in [1, 2] -> f(x * x) - x in [0, 3] } f(x * x) - x -> f(x) - 2 * x;")
    with pytest.raises(RuntimeError, match="syntax error"):
        proven("{ x in }")


def test_without_gappa_the_command_says_how_to_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "proofs"],
        env=os.environ | {"PATH": ""}, cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "apt-get install gappa" in done.stdout
