"""Batches of rows: computed as one, answered as the requests that they came from.

That no answer depends on who shares its batch is a property of the heads and normalizers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from logitsieve.api.results import Answer, TopKReply
from logitsieve.server.scheduling.batcher import Piece
from logitsieve.utils.hidden import as_hidden
from logitsieve.v1.rpcs import Reply

# Of Answer, what has a value for each row.
BY_ROW = ("exact", "scanned", "fallback", "log_z", "log_z_low", "log_z_high", "log_z_error")

Outcome = Reply | Exception


def compute(pieces: Sequence[Piece]) -> list[Outcome]:
    """What became of each piece: its rows' reply, or what went wrong with its request."""
    if len(pieces) == 1 and pieces[0].whole:
        return [_alone(pieces[0])]
    try:
        return list(_together(pieces))
    except Exception:  # each request must hear of its own mistakes, in its own words
        return [_cut_of(_alone(piece), piece) for piece in pieces]


def joined(parts: Sequence[TopKReply]) -> TopKReply:
    """One reply of consecutive rows; the time to compute is that of all."""
    answers = [part.answer for part in parts]
    answer = _by_row(answers[0], lambda name: np.concatenate([getattr(a, name) for a in answers]))
    return TopKReply(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.logits for part in parts]),
        answer._replace(compute_ns=sum(one.compute_ns for one in answers)),
    )


def cut(reply: TopKReply, start: int, stop: int) -> TopKReply:
    """The reply to these rows alone; the time to compute is that of the batch."""
    answer = _by_row(reply.answer, lambda name: getattr(reply.answer, name)[start:stop])
    return TopKReply(reply.ids[start:stop], reply.logits[start:stop], answer)


def _alone(piece: Piece) -> Outcome:
    waiting = piece.waiting
    try:
        return waiting.asked.compute(waiting.point)
    except Exception as error:  # raised where the request is awaited
        return error


def _together(pieces: Sequence[Piece]) -> list[TopKReply]:
    rows = [
        as_hidden(cast("np.ndarray", piece.waiting.asked.independent)[piece.start : piece.stop])
        for piece in pieces
    ]
    first = pieces[0].waiting
    reply = first.point.topk(rows[0] if len(rows) == 1 else np.concatenate(rows), first.asked.k)
    ends = np.cumsum([len(one) for one in rows]).tolist()
    return [cut(reply, end - len(one), end) for one, end in zip(rows, ends, strict=True)]


def _cut_of(outcome: Outcome, piece: Piece) -> Outcome:
    return cut(outcome, piece.start, piece.stop) if isinstance(outcome, TopKReply) else outcome


def _by_row(answer: Answer, of: Callable[[str], np.ndarray]) -> Answer:
    found: dict[str, Any] = {name: of(name) for name in BY_ROW if getattr(answer, name) is not None}
    return answer._replace(**found)
