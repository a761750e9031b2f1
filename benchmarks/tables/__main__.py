"""Write every table of the documentation from the raw results: `make tables`.

Tables stand between marks on the pages; each race's and the load's own tables stand next to their
raw results. --check writes nothing and exits with 1 where a page and the raw results disagree.
"""

import argparse
import sys

from benchmarks.tables.documents import ROOT, documents


def main() -> int:
    """Write or compare, and print what changed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    stale = 0
    for path, text in documents():
        place = ROOT / path
        if place.exists() and place.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        print(f"{path}: {'differs from the raw results' if check else 'written'}")
        if not check:
            place.write_text(text, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
