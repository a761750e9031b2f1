"""What constraints do to the logits of each row.

Shape letters: B batch rows.
"""

from __future__ import annotations

from typing import NamedTuple

from logitsieve.types.results import Bool, Float64, Int32, Int64


class Edits(NamedTuple):
    """Logits that are not W[ids] . h + b: row r owns those of ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct and rising within a row
    values: Float64  # the logit instead; -inf for an id that must not be answered
    only: Bool  # [B] every id that is not named is forbidden
