"""`logitsieve shard`: an index split by the rows of W."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from logitsieve.cli.options import AsJson, IndexFolder, flag
from logitsieve.cli.output import bars, print_json, print_table, size
from logitsieve.index_builder.data.contexts import open_contexts

if TYPE_CHECKING:
    from logitsieve.api.results import Float32
    from logitsieve.index.contents import Contents

SAMPLED = 20_000  # contexts that choose replicated rows


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    shards: int = flag(MISSING, "Number of shards.", min=1)
    out: Path = flag(MISSING, "The new index: a folder <name>/<version> that does not exist.")
    contexts: str | None = flag(
        None,
        "Contexts, as `build` takes them, of which 20,000 choose the rows of W that are kept beside"
        " the shards too, those that answers most often need: no shard looks for rows below the"
        " best of these.",
    )
    replicated: int | None = flag(
        None, "With --contexts: so many of these rows at most.", show_default="V / 20", min=0
    )
    bounds: bool = flag(
        False,
        "Keep the sketches of all other rows beside the shards: they prove answers without one.",
        "--bounds",
    )


def command(index: IndexFolder, options: ShardOptions, as_json: AsJson = False) -> None:
    """Write an index again with the rows of W in shards, each an index of its own.

    Every byte of the index is checked first, and every byte that was written in the end. The heads
    `exact`, `certified` and `screen` are kept, others are left out.

    Example: logitsieve shard models/lm/1 --shards 4 --out models/lm-4/1 --contexts captured
    """
    from logitsieve.index import split_index
    from logitsieve.index.contents import read_contents

    whole = read_contents(index).manifest
    with bars("shard") as progress:
        out = split_index(
            index,
            options.out,
            options.shards,
            bounds=options.bounds,
            contexts=None if options.contexts is None else _sample(options.contexts, whole.dim),
            replicated=options.replicated,
            progress=progress,
        )
    split = read_contents(out)
    left_out = sorted(whole.heads.keys() - split.manifest.heads.keys())
    shards = shard_facts(split)
    if as_json:
        facts = {"index": str(out), "digest": split.manifest.digest, "left_out": left_out}
        print_json({**facts, "shards": shards})
        return
    print_shards(f"{out}: {whole.vocab_size:,} rows in {len(shards)} shards", shards)
    if left_out:
        print(f"Heads left out, as they need all of W: {', '.join(left_out)}")


def _sample(contexts: str, dim: int) -> Float32:
    """Contexts that lie evenly over all."""
    with TemporaryDirectory() as scratch:
        return open_contexts(contexts, dim, Path(scratch)).sample(SAMPLED)


def shard_facts(contents: Contents) -> list[dict[str, Any]]:
    """The shards of an index: their folders, rows and bytes; none where it is in one piece."""
    facts, first = [], 0
    for shard in contents.shards:
        manifest = shard.manifest
        facts.append(
            {
                "folder": str(shard.path.relative_to(contents.path)),
                "first": first,
                "rows": manifest.vocab_size,
                "bytes": sum(entry.size for entry in manifest.files()),
                "digest": manifest.digest,
            }
        )
        first += manifest.vocab_size
    return facts


def print_shards(title: str, shards: list[dict[str, Any]]) -> None:
    rows = [
        (
            shard["folder"],
            f"{shard['first']:,} .. {shard['first'] + shard['rows'] - 1:,}",
            size(shard["bytes"]),
            shard["digest"],
        )
        for shard in shards
    ]
    print_table(title, ["shard", "rows of W", "size", "digest"], rows)
