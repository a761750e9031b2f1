"""Write every table and figure of the documentation from the raw results: `make tables`.

Tables stand between marks on the pages, figures in sentences that benchmarks/tables/sentences.py
repeats; the tables beside raw results are written too. --check writes nothing and exits with 1
where a page and the raw results disagree.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.tables.documents import ROOT, documents


def main() -> int:
    """Write or compare, and print what changed and what could not be placed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    wrong = 0
    for path, rendered in documents():
        for problem in rendered.problems:
            print(f"{path}: {problem}")
        place = ROOT / path
        changed = not place.exists() or place.read_text(encoding="utf-8") != rendered.text
        if changed:
            print(f"{path}: {'differs from the raw results' if check else 'written'}")
            if not check:
                place.write_text(rendered.text, encoding="utf-8")
        wrong += bool(rendered.problems) or (changed and check)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
