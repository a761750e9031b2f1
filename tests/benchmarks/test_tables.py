"""README.md and docs/ quote the raw results, and nothing measured that comes from nowhere."""

from __future__ import annotations

import pytest

from benchmarks.tables import documents, ledger
from benchmarks.tables.figures import digits, markdown, number, ratio, whole
from benchmarks.tables.ledger import Listed
from benchmarks.tables.page import Rendered, render

PAGE = """One row takes 117
µs, `screen` 2.9 µs (faiss).

<!-- table: times -->
old
<!-- end -->
"""


def sentence(us: float, name: str = "faiss") -> str:
    return f"takes {number(us)} µs, `screen` {number(2.66)} µs (\x02{name}\x03)."


def rendered(us: float = 121.6, name: str = "faiss", table: str = "times") -> Rendered:
    return render(
        PAGE, {table: lambda: markdown(["a", ""], [["1", ""]])}, lambda: [sentence(us, name)]
    )


@pytest.mark.parametrize(
    ("path", "done"), [pytest.param(*each, id=each[0]) for each in documents.documents()]
)
def test_a_page_agrees_with_the_raw_results(path: str, done: Rendered) -> None:
    """`make tables` writes what differs; what it cannot place has to be changed by hand."""
    assert done.problems == []
    assert (documents.ROOT / path).read_text(encoding="utf-8") == done.text


def test_every_raw_file_has_a_command_and_feeds_a_page() -> None:
    rows = documents.index().splitlines()[2:]
    assert len(rows) == len(documents.raw_names())
    assert [row for row in rows if row.endswith("| |")] == []


def test_a_table_and_the_figures_of_a_sentence_are_written_where_they_stand() -> None:
    done = rendered()
    assert done.problems == []
    assert done.text == PAGE.replace("117", "122").replace("2.9", "2.66").replace(
        "old", "\n| a | |\n|---|---|\n| 1 | |\n"
    )
    assert [done.text[slice(*span)].split()[0] for span in done.covered] == ["takes", "<!--"]


def test_names_follow_the_raw_results_too() -> None:
    assert "2.66 µs (faiss IndexFlatIP)." in rendered(name="faiss IndexFlatIP").text


def test_a_sentence_that_is_not_there_and_an_unknown_table_are_problems() -> None:
    [lost] = render(PAGE, {"times": str}, lambda: ["another sentence"]).problems
    assert lost == "found 0 times, not once: 'another sentence'"
    assert rendered(table="other").problems == ["there is no table 'times'"]


def test_what_was_not_measured_is_a_problem_of_its_page() -> None:
    def missing() -> str:
        return {"lm-docs": ""}["lm-docs-70k"]

    done = render(PAGE, {"times": missing}, lambda: [missing()])
    assert done.text == PAGE
    assert [problem.rpartition(": ")[2] for problem in done.problems] == [
        "KeyError('lm-docs-70k')"
    ] * 2


def test_a_table_without_its_raw_file_stays_and_has_to_be_listed() -> None:
    def missing() -> str:
        raise FileNotFoundError

    page = "<!-- table: times -->\n\ntakes 5 µs\n\n<!-- end -->\n"
    done = render(page, {"times": missing}, list)
    assert (done.text, done.problems, done.covered) == (page, [], [])
    assert len(ledger.unaccounted("page.md", done)) == 1


@pytest.mark.parametrize(
    "text",
    ["takes 12 µs", "12\nms", "6.5x", "is 3 times as fast", "P@1 0.981", "a cosine of 0.123",
     "| a | 1 | 2 |\n|---|---|---|\n| b | 3 | 4 |"],
)  # fmt: skip
def test_what_looks_measured_has_to_come_from_somewhere(text: str) -> None:
    [problem] = ledger.unaccounted("page.md", Rendered(text))
    assert problem.startswith("no raw result, nor listed in ledger.py")
    assert ledger.unaccounted("page.md", Rendered(text, covered=[(0, len(text))])) == []


@pytest.mark.parametrize("text", ["P@1 0.998", "5 words", "`12 ms`", "e^{2x}", "V = 10,000"])
def test_what_is_not_measured_may_stand(text: str) -> None:
    assert ledger.unaccounted("page.md", Rendered(text)) == []


def test_what_is_listed_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LISTED", (Listed("page.md", "12 µs", "by hand"),))
    assert ledger.unaccounted("page.md", Rendered("takes 12\nµs")) == []
    assert ledger.unaccounted("page.md", Rendered("nothing")) == [
        "listed in ledger.py in vain: '12 µs'"
    ]


def test_figures_have_three_digits_and_ratios_two() -> None:
    assert [digits(x) for x in (0, 2.657, 11.66, 116.5, 1000.3, 33576)] == [
        "0", "2.66", "11.7", "116", "1,000", "33,600"
    ]  # fmt: skip
    assert [ratio(x).strip("\x02\x03") for x in (6.54, 19.5, 45.9, 550.3, 5981)] == [
        "6.5", "19.5", "46", "550", "5,980"
    ]  # fmt: skip
    assert whole(10010) == "\x0210,010\x03"
