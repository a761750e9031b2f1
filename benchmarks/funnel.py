"""How many rows of W are left after each level of a sketch, for the best token of a context.

    logitsieve build --weight model.gguf --out models/NAME/1
    cat README.md CONTRIBUTING.md examples/nano.py > text.txt
    logitsieve capture -m model.gguf --text text.txt --max-rows 400 --out contexts
    python -m benchmarks.funnel NAME models/NAME/1 contexts

These are counts, so other work on the machine changes nothing. `benchmarks.plots` draws them.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.kernels import groups_read
from logitsieve.api.results import Float64
from logitsieve.heads.sketch import GRADES
from logitsieve.index import Index, open_index
from logitsieve.index_builder.contexts import open_contexts
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.levels import LEVEL_COUNT


def main() -> None:
    parser = raw.parser(__doc__, "funnel.json.gz")
    parser.add_argument("model", metavar="NAME", help="of the model, for the picture")
    parser.add_argument("index", type=Path, metavar="INDEX", help="folder")
    parser.add_argument("contexts", type=Path, metavar="CONTEXTS", help="of `capture`")
    options = parser.parse_args()
    index = open_index(options.index)
    about = {"model": options.model, "date": datetime.now(UTC).isoformat()}
    raw.write(options.out, about | counted(index, options.contexts))


def counted(index: Index, path: Path) -> dict[str, Any]:
    """Means over contexts: rows whose level 1, 2, 3 is read, and rows that are computed."""
    held = open_contexts(path, index.softmax.dim)
    contexts = held.take(np.arange(held.rows))
    left: dict[str, list[float]] = {}
    for grade in GRADES:
        head: Any = index.head("sketch", max_error=grade)
        read: Float64 = np.empty((len(contexts), LEVEL_COUNT + 1))
        assert groups_read(head._address, contexts, 1, read) < 0, "a context is refused"
        read[:, :LEVEL_COUNT] *= LANES
        left[f"sketch {grade:g}"] = read.mean(axis=0).tolist()
    return {"vocab_size": index.softmax.vocab_size, "contexts": len(contexts), "left": left}


if __name__ == "__main__":
    main()
