"""Tables of README.md and docs/ are those of the raw results."""

import pytest

from benchmarks.tables import documents
from benchmarks.tables.figures import digits, markdown, ratio

PAGE = """One row takes 117 µs.

<!-- table: times -->
old
<!-- end -->
"""


@pytest.mark.parametrize(
    ("path", "text"), [pytest.param(*each, id=each[0]) for each in documents.documents()]
)
def test_a_page_agrees_with_the_raw_results(path: str, text: str) -> None:
    """`make tables` writes what differs."""
    assert (documents.ROOT / path).read_text(encoding="utf-8") == text


def test_tables_have_commands_marks_and_names() -> None:
    rows = documents.index().splitlines()[2:]
    assert len(rows) == len(documents.raw_names())
    text = documents.render(PAGE, {"times": lambda: markdown(["a", ""], [["1", ""]])})
    assert text == PAGE.replace("old", "\n| a | |\n|---|---|\n| 1 | |\n")
    with pytest.raises(ValueError, match="there is no table 'times', allowed: other"):
        documents.render(PAGE, {"other": str})


def test_figures_have_three_digits_and_ratios_two() -> None:
    assert [digits(x) for x in (0, 2.657, 11.66, 116.5, 1000.3, 33576)] == [
        "0", "2.66", "11.7", "116", "1,000", "33,600"
    ]  # fmt: skip
    assert [ratio(x) for x in (6.54, 19.5, 45.9, 550.3, 5981)] == [
        "6.5x", "19.5x", "46x", "550x", "5,980x"
    ]  # fmt: skip
