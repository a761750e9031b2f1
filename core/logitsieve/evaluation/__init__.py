"""How right and how fast a head is, and which of its operating points to take."""

from logitsieve.evaluation.confidence import Precision
from logitsieve.evaluation.machine import cpu_name
from logitsieve.evaluation.operating_points import Chooser, OperatingPoint, read_points, read_target
from logitsieve.evaluation.precision import Evaluation, Judge, evaluate, evaluate_all
from logitsieve.evaluation.timing import us_per_row

__all__ = [
    "Chooser",
    "Evaluation",
    "Judge",
    "OperatingPoint",
    "Precision",
    "cpu_name",
    "evaluate",
    "evaluate_all",
    "read_points",
    "read_target",
    "us_per_row",
]
