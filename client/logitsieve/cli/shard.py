from dataclasses import MISSING, dataclass
from pathlib import Path

from logitsieve.cli.options import AsJson, IndexFolder, flag
from logitsieve.cli.output import bars, print_json, print_table, size


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    shards: int = flag(MISSING, "Number of shards.", min=1)
    out: Path = flag(MISSING, "The new folder <name>/<version>, which does not exist.")


def command(index: IndexFolder, options: ShardOptions, as_json: AsJson = False) -> None:
    """Split an index by the rows of W into several indexes, OUT/shards/1, 2, ...

    Every byte of the index is checked first. Each shard has the heads that bound all rows.

    Example: logitsieve shard models/lm/1 --shards 4 --out models-4/lm/1
    """
    from logitsieve.index import split_index
    from logitsieve.index.reader import read_contents
    from logitsieve.index.split import SHARDS_FOLDER

    with bars("shard") as progress:
        out = split_index(index, options.out, options.shards, progress=progress)
    facts, rows, first = [], [], 0
    for number in range(1, options.shards + 1):
        manifest = read_contents(out / SHARDS_FOLDER / str(number)).manifest
        held = sum(entry.size for entry in manifest.files())
        names = "folder", "first", "rows", "bytes", "digest"
        own = f"{SHARDS_FOLDER}/{number}", first, manifest.vocab_size, held, manifest.digest
        facts.append(dict(zip(names, own, strict=True)))
        rows.append((own[0], f"{first:,}", f"{manifest.vocab_size:,}", size(held), own[-1]))
        first += manifest.vocab_size
    if as_json:
        print_json({"index": str(out), "shards": facts})
        return
    title = f"{out}: {first:,} rows in {options.shards} shards"
    print_table(title, ["shard", "first row", "rows", "size", "digest"], rows)
