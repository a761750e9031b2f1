"""How right and how fast a head is."""

from logitsieve.evaluation.bounds import Precision
from logitsieve.evaluation.precision import Evaluation, evaluate, evaluate_all
from logitsieve.evaluation.timing import us_per_row

__all__ = ["Evaluation", "Precision", "evaluate", "evaluate_all", "us_per_row"]
