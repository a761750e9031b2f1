"""Check that llama.cpp's logits are W h + b as we read the file.

llama.cpp applies scales, caps and suppressed tokens by rules that differ between architectures. A
cap shows only in large logits, and llama.cpp's rounding of h hides small differences. So we take
hidden states of real tokens, round them to numbers that llama.cpp does not round further, multiply
them by powers of two, and put them into the graph. Then only the rounding of float32 remains.

Shape letters: N hidden states, S ids with rows of W that are compared.
"""

from collections.abc import Callable, Sequence

import numpy as np

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.llamacpp.model_file import FLOATS, GgufModel
from logitsieve.utils.floats import narrowed, widened

TOKENS = 6  # tokens of the test: room for two hidden states times PEAKS
READ = 1 << 20  # numbers of W that are compared
PEAKS = (4.0, 64.0, 1024.0)  # approximate largest |logit| before a cap
LARGEST = 1024.0  # limit on |h|, as llama.cpp's Q8_1 has sums of a block in float16
ROUNDING = 2.0**-16  # bound on errors of float32 sums, relative to the sum of |w h|
# The bound for types that have sums of h's blocks in float16.
COARSE = dict.fromkeys(("Q4_1", "Q5_1"), 2.0**-9)
CLOSE_TO_CAP = 0.9  # share of a cap beyond which the logit before it cannot be computed back
CHANGED = 2.0**-6  # bound on the relative change of h by other kernels
MANY, ALIKE = 32, 0.25  # tokens read at once, and bound on their relative change of h

Decode = Callable[[Sequence[tuple[int, int]], Float32 | None], tuple[Float32, Float32]]


class OtherLogits(ValueError):
    """llama.cpp's logits are not W h + b."""


def compare_logits(gguf: GgufModel, decode: Decode, begin: int, sequences: int) -> None:
    """Raise OtherLogits for a difference, or if rows of several sequences are in another order.

    `decode` reads (sequence, token) pairs into an empty cache. It returns their hidden states
    [N, D] and logits [N, V]; the logits are of the rows that are given to it, if any.
    """
    last = gguf.vocab_size - 1
    tokens = [begin, *np.linspace(0, last, TOKENS + 1).astype(int)[2:].tolist()]
    hidden_ND, logits_NV = decode([(0, token) for token in tokens], None)
    ids = np.unique(np.linspace(0, last, max(READ // gguf.dim, 64)).astype(np.int64))
    layer = _Layer(gguf, ids)
    contexts = [representable(row, gguf.matrix.kind) for row in hidden_ND[[TOKENS // 2, -1]]]
    given_ND = np.concatenate([layer.amplified(row) for row in contexts])
    changed = [*tokens[:-1], max(tokens[-1] - 1, 0)]
    other_ND, given_NV = decode([(0, token) for token in changed], given_ND)
    given_NV = given_NV[: len(given_ND)]
    _refuse_other_past(hidden_ND[:-1], other_ND[:-1])
    more = (tokens * MANY)[:MANY]
    _refuse_other_batch(hidden_ND, decode([(0, token) for token in more], None)[0][: len(tokens)])
    layer.compare_rows(given_NV, given_ND, np.zeros_like(given_ND))
    apart_ND, apart_NV = decode(list(enumerate(tokens[:sequences])), None)
    for rows_ND, rows_NV in ((hidden_ND, logits_NV), (apart_ND, apart_NV)):
        rounded_ND = np.abs(rows_ND - representable(rows_ND, gguf.matrix.kind))
        layer.compare_rows(rows_NV, rows_ND, rounded_ND)
    for start in range(0, len(given_ND), len(PEAKS)):
        part = slice(start, start + len(PEAKS))
        layer.compare_sizes(given_NV[part], given_ND[part])


def representable(hidden_states: Float32, kind: str) -> Float32:
    """Round h to numbers that ggml's `vec_dot_type` for rows of a type represents exactly.

    Engines divide h into blocks of 256 or 32 numbers, and store codes up to 127 with a scale in
    float32, float16 or bfloat16. So here 256 numbers share a scale in bfloat16, and the largest of
    each 32 becomes 127 times that scale.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if kind in FLOATS:
        name = {"F16": "float16", "BF16": "bfloat16"}.get(kind, "float32")
        return widened(narrowed(np.ascontiguousarray(hidden_states), name))
    wide = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
    blocks = hidden_states.reshape(-1, wide // 32, 32)
    exact = np.abs(blocks).max(axis=(1, 2), keepdims=True) / np.float32(127)
    scale = widened(narrowed(exact, "bfloat16"))
    codes = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    largest = np.abs(codes).argmax(axis=2)[..., None]
    signs = np.sign(np.take_along_axis(codes, largest, 2))
    np.put_along_axis(codes, largest, 127 * signs, 2)
    return np.asarray(codes * scale, np.float32).reshape(hidden_states.shape)


def _refuse_other_past(first_ND: Float32, second_ND: Float32) -> None:
    change = np.abs(first_ND - second_ND).max(axis=1)
    if not (change <= CHANGED * np.sqrt((first_ND**2).mean(axis=1))).all():
        raise OtherLogits("its attention is not causal: a token's logits depend on later ones")


def _refuse_other_batch(few_ND: Float32, many_ND: Float32) -> None:
    gap = np.linalg.norm(many_ND - few_ND, axis=1)
    if not (gap <= ALIKE * np.linalg.norm(few_ND, axis=1)).all():
        raise OtherLogits(f"{MANY} tokens read at once give other hidden states than {len(few_ND)}")


class _Layer:
    def __init__(self, gguf: GgufModel, ids: Int64) -> None:
        self._gguf, self._ids = gguf, ids
        self._weight_SD = gguf.matrix.rows(ids).astype(np.float64) * gguf.scale
        self._bias: Float64 = np.zeros(gguf.vocab_size)
        if gguf.bias is not None:
            self._bias = gguf.bias.astype(np.float64)

    def amplified(self, context: Float32) -> Float32:
        """Scale a hidden state by powers of two so that its logits reach about PEAKS, [N, D]."""
        peak, largest = np.abs(self._weight_SD @ context).max(), np.abs(context).max()
        if not (peak > 0 and largest > 0):
            return np.tile(context, (len(PEAKS), 1))
        sizes = np.minimum(np.array(PEAKS) / peak, LARGEST / largest)
        factors_N = 2.0 ** np.floor(np.log2(sizes))
        return np.asarray(factors_N[:, None] * context, np.float32)

    def compare_rows(self, logits_NV: Float32, hidden_ND: Float32, rounded_ND: Float32) -> None:
        """Compare logits with W h + b, if llama.cpp rounds h by at most `rounded_ND`."""
        plain_NS = hidden_ND.astype(np.float64) @ self._weight_SD.T + self._bias[self._ids]
        sizes_DS, bias = np.abs(self._weight_SD).T, np.abs(self._bias[self._ids])
        rounding = COARSE.get(self._gguf.matrix.kind, ROUNDING)
        slack_NS = rounding * (np.abs(hidden_ND) @ sizes_DS + bias) + rounded_ND @ sizes_DS
        self._compare(logits_NV, self._softcapped(plain_NS), slack_NS, self._ids)

    def compare_sizes(self, logits_NV: Float32, hidden_ND: Float32) -> None:
        """Compare all logits of multiples of one hidden state with the logits of the first one."""
        cap, smallest = self._gguf.softcap, logits_NV[0].astype(np.float64)
        ids = np.arange(len(smallest))
        if cap is not None:
            ids = np.flatnonzero(np.abs(smallest) <= CLOSE_TO_CAP * cap)
            smallest[ids] = cap * np.arctanh(smallest[ids] / cap)
        largest = np.abs(hidden_ND).max(axis=1)
        factors = largest[1:] / max(largest[0], np.finfo(np.float32).tiny)
        product_V, bias = smallest[ids] - self._bias[ids], self._bias[ids]
        plain_NV = factors[:, None] * product_V + bias
        size = np.sqrt((product_V[np.isfinite(product_V)] ** 2).mean())
        slack_NV = ROUNDING * (1 + factors[:, None]) * (np.abs(product_V) + np.abs(bias) + size)
        self._compare(logits_NV[1:], self._softcapped(plain_NV), slack_NV, ids)

    def _softcapped(self, plain: Float64) -> Float64:
        cap = self._gguf.softcap
        return plain if cap is None else np.asarray(cap * np.tanh(plain / cap), np.float64)

    def _compare(self, logits_NV: Float32, expected: Float64, slack: Float64, ids: Int64) -> None:
        gap = np.abs(logits_NV[:, ids] - expected)
        if not (gap <= slack).all():
            cap = self._gguf.softcap
            described = f"scale {self._gguf.scale:.6g}, " + (f"cap {cap:g}" if cap else "no cap")
            raise OtherLogits(f"logits up to {gap.max():.3g} away from W h + b ({described})")
