from dataclasses import MISSING, dataclass
from pathlib import Path

from logitsieve.cli.options import AsJson, IndexFolder, flag
from logitsieve.cli.output import bars, print_json
from logitsieve.cli.points import auto_of, choices, print_points, without_contexts
from logitsieve.evaluation.operating_points import BEYOND
from logitsieve.index_builder import TuneConfig, tune


@dataclass(frozen=True, kw_only=True)
class TuneFiles:
    contexts: str = flag(
        MISSING, "Contexts to judge on, which the build has not seen, in any form that it takes."
    )
    out: Path = flag(MISSING, "The index to write: a new folder <name>/<version>.")


def command(
    index: IndexFolder, files: TuneFiles, config: TuneConfig, as_json: AsJson = False
) -> None:
    """Measure every head at many settings of its knobs, in a new version that shares all files.

    Example: logitsieve tune models/lm/1 --contexts heldout.npy --out models/lm/2
    """
    with bars("tune") as progress:
        tuned = tune(index, files.contexts, files.out, config, progress)
    if as_json:
        facts = {
            "index": str(tuned.path),
            "digest": tuned.digest,
            "calibration": without_contexts(tuned.calibration),
            "auto": choices(auto_of(tuned), None, (BEYOND,)),
        }
        print_json(facts)
        return
    print_points(tuned, bounds=True)
    settings = (tuned.calibration or {})["settings"]
    print(f"{tuned.path}: {settings['measured']} settings measured, of one digest with {index}")
    if settings["left_out"]:
        print(f"Warning: {settings['left_out']} settings left out, --minutes were over")
