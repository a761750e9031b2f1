"""Attacks on the law of draws, head by head: the id with the most noise and logit of those left.

The judge weighs all logits in long double. What is closer than CLOSE to the edge of a filter may be
on either side of it; of all others the id must be the best, to the last bit. log Z of what filters
leave must lie in its interval, and of all, the interval be narrow.

Shape letters: B batch rows, V vocabulary, N draws, E edits of all rows.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator

from logitsieve.api.requests import Sampling
from logitsieve.api.results import Bool, Float32, Float64, Int32, UInt64
from logitsieve.heads import Softmax
from logitsieve.heads._base.edits import Edits
from logitsieve.heads.full import FullHead
from tests.log_z import interval_of, log_z_in
from tests.oracle import logits64
from tools.attacks.decoders import KINDS, Hard, decoding
from tools.attacks.draws import fill_noise
from tools.attacks.judge import DOUBT, LONG, above_one, log_z
from tools.attacks.matrices import sketched
from tools.attacks.tally import Attack, Tally

ROWS, SAMPLES, CALLS = 6, 6, 6
CLOSE = LONG(1e-12)  # of a mass, or of min-p: the edge of a filter
WIDTH = 2e-12  # nats, and 2^-50 a term: draws promise log Z to some 1e-12
SCALES = 1.0, 1.0, 0.3, 3.0, 1e-4, 100.0, 1e5


def smooth(random: Generator, B: int) -> Hard:
    """Rows with a spectrum that falls, as those of a language model: few have most of the mass."""
    V, D = int(random.integers(600, 3000)), int(random.choice([64, 100, 200]))
    falling = 1.0 / (1 + np.arange(D)) ** random.uniform(0, 1.5)
    W = random.standard_normal((V, D)) * falling * 10.0 ** random.uniform(-1, 1)
    bias = (random.standard_normal(V) * random.choice([0.0, 1.0])).astype(np.float32)
    return Softmax(W.astype(np.float32), bias), random.standard_normal((B, D)).astype(np.float32)


KINDS_OF_LAW: Mapping[str, Callable[[Generator, int], Hard]] = {**KINDS, "smooth": smooth}


def lawful(random: Generator, kind: str) -> Tally:
    """Draws of both heads under random edits, temperatures and filters."""
    softmax, hidden_states = KINDS_OF_LAW[kind](random, ROWS)
    full, sketch = FullHead(softmax), sketched(softmax, random).head
    plain, tally = logits64(softmax.weight, softmax.bias, hidden_states), Tally()
    width = WIDTH + 2.0**-50 * softmax.vocab_size
    for _ in range(CALLS):
        edits, logits = edited(random, plain)
        seeds = random.integers(0, 2**63, ROWS).astype(np.uint64)
        step = int(random.integers(1 << 40))
        scale = float(random.choice(SCALES))
        top_p = float(random.choice([1.0, 1.0, 0.95, 0.5, 1e-6, random.random()]))
        min_p = float(random.choice([0.0, 0.0, 0.1, 1e-9, 1.0]))
        how = Sampling(SAMPLES, seeds, step, top_p=top_p, min_p=min_p)
        left, unsure = remaining(logits, scale, top_p, min_p)
        values = noisy(logits, scale, seeds, step)
        ids, _, _ = full.draw(hidden_states, how, scale, edits)
        name = f"scale {scale} top-p {top_p} min-p {min_p}"
        tally.join(judged(f"full {name}", ids, values, left, unsure))
        ids, fields, _ = sketch.draw(hidden_states, how, scale, edits)
        tally.join(judged(f"sketch {name}", ids, values, left, unsure))
        narrow = width if top_p == 1.0 and min_p == 0.0 else np.inf
        tally.join(enclosed(name, interval_of(fields, scale), logits, left, unsure, scale, narrow))
    return tally


def decided(random: Generator, kind: str) -> Tally:
    """Draws of a decoder by few best ids, at a grade: right whether or not they claim a proof.

    A proven log Z encloses the true one; probabilities of different ids add up to at most 1.
    """
    softmax, hidden_states = KINDS_OF_LAW[kind](random, ROWS)
    logits, tally = logits64(softmax.weight, softmax.bias, hidden_states), Tally()
    with decoding(softmax, random) as decoder:
        for _ in range(CALLS):
            seeds = random.integers(0, 2**63, ROWS).astype(np.uint64)
            step, samples = int(random.integers(1 << 40)), int(random.choice([1, 3, SAMPLES]))
            top_p = float(random.choice([1.0, 1.0, 0.95, 0.5, random.random()]))
            min_p = float(random.choice([0.0, 0.0, 0.1, 0.01, 1e-9]))
            temperature = float(random.choice([1e-3, 0.3, 0.8, 1.0, 1.0, 3.0, 1e4]))
            grade, scored = float(random.choice([0.0, 1e-15, 1e-15])), bool(random.random() < 0.6)
            how: Any = {"temperature": temperature, "top_p": top_p, "min_p": min_p}
            asked: Any = {"max_error": grade, "log_probs": scored, "seeds": seeds, "step": step}
            reply = decoder.sample(hidden_states, samples, **how, **asked)
            scale, name = 1.0 / temperature, f"{how} {grade} {samples}"
            left, unsure = remaining(logits, scale, top_p, min_p)
            values = noisy(logits, scale, seeds, step)[:, :samples]
            tally.join(judged(name, reply.ids, values, left, unsure))
            if not scored:
                continue
            if reply.answer.log_z_low is not None:
                interval = np.stack(log_z_in(reply.answer), axis=1).astype(np.float64)
                tally.join(enclosed(name, interval, logits, left, unsure, scale, np.inf))
            tally.join(summed(name, reply.ids, reply.log_probs))
    return tally


def distinct(random: Generator, kind: str) -> Tally:
    """Draws without replacement: the ids with the most noise and logit, in their order."""
    softmax, hidden_states = KINDS_OF_LAW[kind](random, ROWS)
    logits, tally = logits64(softmax.weight, softmax.bias, hidden_states), Tally()
    with decoding(softmax, random) as decoder:
        for _ in range(CALLS):
            seeds = random.integers(0, 2**63, ROWS).astype(np.uint64)
            step = int(random.integers(1 << 40))
            samples = min(int(random.choice([1, 3, 20, 140])), logits.shape[1])
            top_p = float(random.choice([1.0, 1.0, 0.95, random.random()]))
            min_p = float(random.choice([0.0, 0.0, 0.1, 1e-9]))
            temperature = float(random.choice([1e-3, 0.3, 1.0, 1.0, 3.0, 1e4]))
            how: Any = {"temperature": temperature, "top_p": top_p, "min_p": min_p}
            asked: Any = {"max_error": float(random.choice([0.0, 1e-15])), "step": step}
            asked |= {"replace": False, "log_probs": bool(random.random() < 0.5)}
            reply = decoder.sample(hidden_states, samples, seeds=seeds, **how, **asked)
            left, unsure = remaining(logits, 1.0 / temperature, top_p, min_p)
            values = noisy(logits, 1.0 / temperature, seeds, step, 1)[:, 0]
            tally.join(ordered(f"{how} {asked} {samples}", reply.ids, values, left, unsure))
    return tally


def ordered(name: str, ids: Int32, values: Float64, left: Bool, unsure: Bool) -> Tally:
    """Ids are different ones that are left, the best of them, best first; -1 beyond the last."""
    wrong = np.zeros(len(ids), np.bool_)
    for row, drawn in enumerate(ids):
        held = drawn[drawn >= 0]
        least = min(len(drawn), int(left[row].sum()))
        own, others = values[row, held], left[row].copy()
        others[held] = False
        wrong[row] = (
            len(np.unique(held)) < max(least, len(held))
            or (drawn[: len(held)] != held).any()
            or not (left[row] | unsure[row])[held].all()
            or (np.diff(own) > 0).any()
            or values[row, others].max(initial=-np.inf) > own.min(initial=np.inf)
        )
    return Tally().add(wrong, lambda row: f"{name} row {row}: {ids[row]}")


def edited(random: Generator, logits: Float64) -> tuple[Edits | None, Float64]:
    """Random edits of each row, and the logits with them."""
    if random.random() < 0.4:
        return None, logits
    logits, ends, ids, values = logits.copy(), [0], [], []
    for row in logits:
        some = np.sort(random.permutation(len(row))[: random.integers(0, len(row))])
        if random.random() < 0.5:  # the best ones
            some = np.sort(np.argsort(-row)[: random.integers(0, min(9, len(row)))])
        off = random.choice([-np.inf, -np.inf, 0.0, 1e-6, -30.0, 30.0], len(some))
        row[some] += off
        ids.append(some)
        values.append(row[some])
        ends.append(ends[-1] + len(some))
    flat = np.concatenate(ids).astype(np.int32), np.concatenate(values)
    return Edits(np.array(ends, np.int64), *flat), logits


def noisy(logits: Float64, scale: float, seeds: UInt64, step: int, draws: int = SAMPLES) -> Float64:
    """[B, N, V] scaled logits with the noise of each draw."""
    (B, V), noise = logits.shape, np.empty(logits.shape[1])
    values = np.empty((B, draws, V))
    scaled = (logits - logits.max(axis=1, keepdims=True)) * scale
    for row in range(B):
        for draw in range(draws):
            fill_noise(seeds[row], np.uint64(step), np.uint64(draw), noise)
            values[row, draw] = scaled[row] + noise
    return values


def remaining(logits: Float64, scale: float, top_p: float, min_p: float) -> tuple[Bool, Bool]:
    """[B, V] ids that filters leave for sure, and those that they may leave."""
    wide = logits.astype(LONG) - logits.max(axis=1, keepdims=True)
    weights = np.exp(wide * LONG(scale))
    left, unsure = logits > -np.inf, np.zeros(logits.shape, np.bool_)
    if top_p < 1.0:
        order = np.argsort(-logits, axis=1, kind="stable")
        sums = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
        before = np.zeros_like(sums)
        before[:, 1:] = sums[:, :-1]
        apart = LONG(top_p) - before / sums[:, -1:]
        apart[:, 0] = 1.0
        back = np.empty_like(apart)
        np.put_along_axis(back, order, apart, axis=1)
        unsure |= left & (np.abs(back) <= CLOSE)
        left &= back > CLOSE
    if min_p > 0.0:
        edge = left & (np.abs(weights - min_p) <= CLOSE * LONG(min_p)) & (weights < 1)
        unsure = (unsure & (weights >= min_p * (1 - CLOSE))) | edge
        left &= (weights > min_p) | (weights == 1)
    return left & ~unsure, unsure


def judged(name: str, ids: Int32, values: Float64, left: Bool, unsure: Bool) -> Tally:
    """An id is the best of those left, or better and perhaps left."""
    sure = np.where(left[:, None], values, -np.inf)
    best = sure.argmax(axis=2)
    rows, draws = np.arange(len(ids))[:, None], np.arange(ids.shape[1])
    better = unsure[rows, ids] & (values[rows, draws, ids] >= sure[rows, draws, best])
    wrong = (ids != best) & ~better

    def describe(row: int) -> str:
        draw = int(np.argmax(wrong[row]))
        id_, other = int(ids[row, draw]), int(best[row, draw])
        got = f"{id_} ({values[row, draw, id_]}, left {left[row, id_]})"
        return f"{name} row {row} draw {draw}: {got}, not {other} ({values[row, draw, other]})"

    return Tally().add(wrong.any(axis=1), describe)


def summed(name: str, ids: Int32, printed: Float32) -> Tally:
    """Probabilities are numbers up to 1; those of a row of different ids add up to at most 1."""
    first = np.stack([np.isin(np.arange(len(row)), np.unique(row, True)[1]) for row in ids])
    wrong = above_one(np.where(first, printed, -np.inf)) | ~(printed <= 0).all(axis=1)
    return Tally().add(wrong, lambda row: f"{name} row {row}: log p {printed[row]} of {ids[row]}")


def enclosed(
    name: str,
    interval: Float64,
    logits: Float64,
    left: Bool,
    unsure: Bool,
    scale: float,
    width: float,
) -> Tally:
    """log Z of what is left lies in its interval, which is `width` wide at most."""
    least = log_z(np.where(left, logits, -np.inf), scale).value(scale)
    most = log_z(np.where(left | unsure, logits, -np.inf), scale).value(scale)
    _, low, high = interval.T
    off = np.maximum(np.abs(most), np.abs(logits.max(axis=1)) * scale) * DOUBT
    wrong = ~((low <= most + off) & (high >= least - off))
    room = 2.0**-47 * (1 + np.abs(most))  # what rounds an interval of numbers that large
    wide = ~(high - low <= width + room)
    return Tally().add(
        np.asarray(wrong | wide),
        lambda row: f"log Z {name} row {row}: {least[row]} in {low[row]!r} .. {high[row]!r}",
    )


ATTACKS: Mapping[str, Attack] = {
    f"draws-{name}-{kind}": partial(attack, kind=kind)
    for kind in KINDS_OF_LAW
    for name, attack in (("law", lawful), ("decided", decided), ("distinct", distinct))
}
