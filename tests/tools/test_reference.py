"""Generated pages of docs/reference/ are current."""

import pytest

from tools.reference import PAGES, path_of


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    """`make reference` writes what differs."""
    text = PAGES[name]()
    assert path_of(name).read_text(encoding="utf-8") == text
    if name == "commands":  # no default of this machine
        assert "all cores;" in text.partition("## `build`")[2].partition("\n## ")[0]
