"""`logitsieve verify`: the full check of an index."""

from __future__ import annotations

from logitsieve.cli.console import bars, print_json, print_table
from logitsieve.cli.options import AsJson, IndexFolder


def command(index: IndexFolder, as_json: AsJson = False) -> None:
    """Check every byte and every number of an index.

    Exit code 1 names the damaged file and the reason. Nothing is remembered: each call reads all.

    Example: logitsieve verify models/lm/1
    """
    from logitsieve.index import verify_index
    from logitsieve.index.contents import read_contents

    with bars("verify") as progress:
        files = verify_index(index, progress)
    dtype = read_contents(index).manifest.dtype
    if as_json:
        print_json({"index": str(index), "dtype": dtype, "checked": files, "ok": True})
        return
    rows = [(file, (index / file).stat().st_size) for file in files]
    print_table(f"{index}: no damage, W is {dtype}", ["checked", "bytes"], rows)
