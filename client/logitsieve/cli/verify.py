from typing import Annotated

import typer

from logitsieve.cli.options import AsJson, IndexFolder
from logitsieve.cli.output import bars, print_json, print_table

AllRows = Annotated[
    bool, typer.Option("--all-rows", help="Compare every row of the sketch with W, not a sample.")
]


def command(index: IndexFolder, all_rows: AllRows = False, as_json: AsJson = False) -> None:
    """Check every byte and every number of an index, and rows of its sketch against W.

    The exit code is 1 if a file is damaged; the error names it. Nothing is cached between calls.

    Example: logitsieve verify models/lm/1
    """
    from logitsieve.index import verify_index
    from logitsieve.index.reader import read_contents
    from logitsieve.index.verify import checked_rows

    with bars("verify") as progress:
        files = verify_index(index, progress, all_rows)
    contents = read_contents(index)
    dtype, V = contents.manifest.dtype, contents.manifest.vocab_size
    rows = len(checked_rows(contents, all_rows))
    if as_json:
        facts = {"index": str(index), "dtype": dtype, "checked": files, "rows": rows, "ok": True}
        print_json(facts)
        return
    sketch = f"; {rows:,} rows checked (of {V:,}), all bounds hold" if rows else ""
    sizes = [(file, (index / file).stat().st_size) for file in files]
    print_table(f"{index}: no damage, W is {dtype}{sketch}", ["checked", "bytes"], sizes)
