"""Write every table of the documentation from the raw results: `make tables`.

Tables stand between marks on the pages; each race's and the load's own tables stand next to their
raw results.
"""

from benchmarks.tables.documents import ROOT, documents


def main() -> None:
    for path, text in documents():
        place = ROOT / path
        if not place.exists() or place.read_text(encoding="utf-8") != text:
            place.write_text(text, encoding="utf-8")
            print(f"{path}: written")


if __name__ == "__main__":
    main()
