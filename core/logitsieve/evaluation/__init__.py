"""Precision and speed of heads, and their operating points."""

from logitsieve.evaluation.operating_points import OperatingPoint, read_points, read_target
from logitsieve.evaluation.precision import Evaluation, Judge, Precision, evaluate
from logitsieve.evaluation.timing import cpu_name, us_per_row

__all__ = [
    "Evaluation", "Judge", "OperatingPoint", "Precision", "cpu_name", "evaluate", "read_points",
    "read_target", "us_per_row",
]  # fmt: skip
