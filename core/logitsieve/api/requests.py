"""Check the arguments of `sample`, `score` and `beam_step`, except hidden."""

import secrets
from collections.abc import Sequence
from numbers import Real
from operator import index
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import DEFAULTS, BeamOptions, SampleOptions, check_keywords, number
from logitsieve.api.results import ArrayLike, Bool, Float32, Int32, UInt64

MOST_SAMPLES = 1 << 20  # draws per row in one request
MOST_BEAMS = 1 << 12
MOST_STEPS = 1 << 64
COLDEST, HOTTEST = 1e-5, 1e4  # temperatures other than 0
LEAST_TOP_P = float(np.nextafter(0.0, 1.0))
INT32_MAX = int(np.iinfo(np.int32).max)
STEEPEST = 10.0  # exponent of the length penalty
SEED_STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 / golden ratio, in the bits of an int64


class Sampling(NamedTuple):
    """Checked options of a draw; see `SampleOptions`."""

    samples: int
    seeds: UInt64  # [B]
    step: int
    temperature: float
    top_k: int  # 0: all
    top_p: float
    min_p: float
    log_probs: bool = True


class Beams(NamedTuple):
    """Checked hypotheses; see `Decoder.beam_step`."""

    beams_in: int
    beams_out: int
    scores: Float32  # [B]
    lengths: Int32  # [B]
    finished: Bool  # [B]
    eos_ids: tuple[int, ...]
    length_alpha: float


def sampling(rows: int, samples: int, options: SampleOptions) -> Sampling:
    """Check options of draws; InvalidRequest names a field, TypeError an unknown keyword."""
    check_keywords(SampleOptions, options)
    given = {**DEFAULTS, **options}
    return Sampling(
        whole("samples", samples, 1, MOST_SAMPLES),
        _seeds(given["seeds"], rows),
        whole("step", given["step"], 0, MOST_STEPS - 1),
        checked_temperature(given["temperature"]),
        whole("top_k", given["top_k"], 0, INT32_MAX),
        number("top_p", given["top_p"], LEAST_TOP_P, 1.0),
        number("min_p", given["min_p"], 0.0, 1.0),
        _flag("log_probs", given["log_probs"]),
    )


def beams(
    rows: int, scores: ArrayLike | None, beams_in: int, beams_out: int, options: BeamOptions
) -> Beams:
    """Check hypotheses; raises like `sampling`."""
    check_keywords(BeamOptions, options)
    given = {**DEFAULTS, **options}
    beams_in = whole("beams_in", beams_in, 1, MOST_BEAMS)
    if rows % beams_in:
        allowed = f"a divisor of the {rows} rows of hidden: one row a hypothesis"
        raise InvalidRequest("beams_in", beams_in, allowed)
    ready = Beams(
        beams_in,
        whole("beams_out", beams_out, 1, MOST_BEAMS),
        _vector("scores", scores, rows, np.float32, "iuf"),
        _vector("lengths", given["lengths"], rows, np.int32, "iu"),
        _vector("finished", given["finished"], rows, np.bool_, "b"),
        _eos(given["eos_ids"]),
        number("length_alpha", given["length_alpha"], -STEEPEST, STEEPEST),
    )
    if not np.isfinite(ready.scores).all():
        raise InvalidRequest("scores", "NaN or infinity", "finite numbers")
    if given["lengths"] is not None and (ready.lengths < 0).any():
        raise InvalidRequest("lengths", int(ready.lengths.min()), "0 or more")
    if not ready.eos_ids and ready.finished.any():
        raise InvalidRequest("eos_ids", "none", "at least one, where hypotheses have finished")
    return ready


def score_targets(targets: ArrayLike, rows: int) -> Int32:
    """Return `targets`, [B, T] or [B], as int32 [B, T]; or InvalidRequest."""
    array = _array("targets", targets, f"integers [{rows}, T] or [{rows}], T >= 1")
    return id_rows("targets", array[:, None] if array.ndim == 1 else array, rows, INT32_MAX)


def id_rows(field: str, ids: ArrayLike, rows: int, largest: int) -> Int32:
    """Return `ids` as int32 [B, M]; InvalidRequest unless integers 0 .. `largest`, `rows` rows."""
    allowed = f"integers [{rows}, M], M >= 1"
    array = _array(field, ids, allowed)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0 or len(array) != rows:
        raise InvalidRequest(field, f"{array.dtype} {list(array.shape)}", allowed)
    if array.min() < 0 or array.max() > largest:
        raise InvalidRequest(field, f"{array.min()} .. {array.max()}", f"ids, 0 .. {largest}")
    return np.ascontiguousarray(array, np.int32)


def _array(field: str, values: ArrayLike, allowed: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(_on_host(values))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(field, "a ragged list", allowed) from error


def whole(field: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int between `low` and `high`; or InvalidRequest."""
    if type(value) is int and low <= value <= high:
        return value
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        whole_number = index(value)
    except TypeError as error:
        got = f"{value!r:.80}"
        raise InvalidRequest(field, got, f"a whole number, {low} to {high}") from error
    if not low <= whole_number <= high:
        raise InvalidRequest(field, f"{whole_number!s:.80}", f"a whole number, {low} to {high}")
    return whole_number


def _flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidRequest(field, f"{value!r:.80}", "True or False")
    return bool(value)


def checked_temperature(value: Any, hottest: float = HOTTEST) -> float:
    """Return a temperature as a float; or InvalidRequest."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if real and (value == 0 or COLDEST <= value <= hottest):
        return float(value)
    allowed = f"a number: 0, or {COLDEST:g} to {hottest:g}"
    raise InvalidRequest("temperature", f"{value!a:.80}", allowed)


def _seeds(seeds: ArrayLike | None, rows: int) -> UInt64:
    if seeds is None:
        return np.frombuffer(secrets.token_bytes(8 * rows), np.uint64)
    if type(seeds) is int and rows == 1 and 0 <= seeds < MOST_STEPS:
        return np.array((seeds,), np.uint64)
    allowed = f"uint64 [{rows}], or one to be spread over the rows"
    if hasattr(seeds, "detach"):  # PyTorch has few operations on uint64: int64 are the bits
        seeds = _on_host(seeds)
        seeds = seeds.view(np.uint64) if seeds.dtype == np.int64 else seeds
    try:
        # As objects: numpy makes floats of lists that mix small and large integers.
        array: Any = seeds if isinstance(seeds, np.ndarray) else np.array(seeds, np.object_)
        flat = [index(seed) for seed in array.ravel()]
        ready = np.array(flat, np.uint64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest("seeds", f"{seeds!r:.80}", allowed) from error
    if array.ndim == 0:
        # Row 0 keeps the seed; different Philox keys give independent draws.
        spread: UInt64 = (ready.view(np.int64) + np.arange(rows) * SEED_STRIDE).view(np.uint64)
        return spread
    if array.size != rows:
        raise InvalidRequest("seeds", f"{array.size} seeds", allowed)
    return ready


def _on_host(values: Any) -> Any:
    """Copy a tensor into an array, floats as float32; return other values unchanged."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() else values).numpy()


def _vector(field: str, values: ArrayLike | None, rows: int, dtype: Any, kinds: str) -> Any:
    """Return [B] of `dtype`, zeros for None, from numbers of numpy's `kinds`."""
    if values is None:
        return np.zeros(rows, dtype)
    if type(values) is np.ndarray and values.dtype == dtype and values.shape == (rows,):
        return np.ascontiguousarray(values)
    allowed = f"{np.dtype(dtype)} [{rows}], one for each row of hidden"
    array = _array(field, values, allowed)
    if array.dtype.kind not in kinds or array.size != rows:
        raise InvalidRequest(field, f"{array.dtype} {list(array.shape)}", allowed)
    with np.errstate(over="ignore"):
        ready = np.ascontiguousarray(array.ravel(), dtype)
    if array.dtype.kind in "iu" and (ready != array.ravel()).any() and dtype is np.int32:
        raise InvalidRequest(field, f"{array.min()} .. {array.max()}", allowed)
    return ready


def _eos(eos_ids: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(whole("eos_ids", one, 0, INT32_MAX) for one in eos_ids)
    except TypeError as error:
        raise InvalidRequest("eos_ids", repr(eos_ids), "a list of ids") from error
