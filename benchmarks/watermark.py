"""How surely a key's texts are detected, whether other texts are not, and what the key costs.

    python -m benchmarks.watermark

SmolLM2 continues stretches of the bundled documentation at temperature 1 by a key. Its texts are
judged by that key, as ids and as words tokenized again, and by another one; the documentation is
judged too. Times, of the CPU, are of single texts with the key and without, in turns.
"""

import gzip
from math import log
from time import process_time
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.llamacpp.__main__ import prepared_index
from benchmarks.machine import describe
from demo.excerpt import EXCERPT
from demo.published import model_file
from logitsieve.api.watermark import WatermarkKey
from logitsieve.client.llamacpp import LlamaAttachment, LlamaContext, attach
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.watermark import detect_watermark
from logitsieve.index import open_index

KEY, OTHER = (WatermarkKey(f"the {name} key here".encode()) for name in ("own", "other"))
MODEL = "smollm2-135m"
TOKENS, PROMPT, AT_ONCE, TURNS = 200, 16, 10, 8
SURE, LEAST_BITS = 1e-6, 1.5
DRAWN: dict[str, Any] = {"temperature": 1.0, "max_tokens": TOKENS, "ignore_end": True}


def main() -> None:
    parser = raw.parser(__doc__, "watermark.json.gz")
    parser.add_argument("--texts", type=int, default=200)
    options = parser.parse_args()
    file = model_file(MODEL)
    decoder = LocalDecoder(open_index(prepared_index(MODEL)))
    with (
        LlamaContext(file, sequences=AT_ONCE, positions=AT_ONCE * 256) as context,
        attach(context, decoder, head="sketch") as attached,
    ):
        texts = stretches(context, options.texts)
        written = [detect_watermark(KEY, text).p_value for text in texts]
        prompts = [text[:PROMPT] for text in texts]
        turns = [[seconds(attached, one, key) for key in (None, KEY)] for one in prompts[:TURNS]]
        judged = judge(attached, prompts)
    results = {"texts": judged, "written": written, "seconds": turns}
    raw.write(options.out, {"machine": describe(), **results})
    print(*summary(judged, written, turns), sep="\n")


def stretches(context: LlamaContext, texts: int) -> list[list[int]]:
    with gzip.open(EXCERPT, "rt", encoding="utf-8") as file:
        ids = context.tokenize(file.read(8 * TOKENS * texts), begin=False)
    return [ids[start : start + TOKENS] for start in range(0, TOKENS * texts, TOKENS)]


def judge(attached: LlamaAttachment, prompts: list[list[int]]) -> list[dict[str, float]]:
    """Bits a token, and p-values of each text: its ids', its words', and by the other key."""
    made = []
    for start in range(0, len(prompts), AT_ONCE):
        some = prompts[start : start + AT_ONCE]
        seeds = range(start, start + len(some))
        texts = attached.generate(some, seeds=[*seeds], watermark=KEY, logprobs=True, **DRAWN)
        for _ in texts:
            pass
        for ids, words, log_probs in zip(texts.ids, texts.texts, texts.log_probs, strict=True):
            again = attached.context.tokenize(words, begin=False, special=False)
            found = {
                "bits": -float(np.mean(log_probs)) / log(2),
                "ids": detect_watermark(KEY, ids).p_value,
                "words": detect_watermark(KEY, again).p_value,
                "other": detect_watermark(OTHER, ids).p_value,
            }
            made.append(found)
        print(f"{start + len(some)} of {len(prompts)}", flush=True)
    return made


def seconds(attached: LlamaAttachment, prompt: list[int], key: WatermarkKey | None) -> float:
    began = process_time()
    for _ in attached.generate(prompt, seeds=1, watermark=key, **DRAWN):
        pass
    return process_time() - began


def summary(
    judged: list[dict[str, float]], written: list[float], turns: list[list[float]]
) -> list[str]:
    marked = [one for one in judged if one["bits"] > LEAST_BITS]
    lines = [f"{len(marked)} of {len(judged)} texts have over {LEAST_BITS} bits a token"]
    for of in ("ids", "words"):
        sure = np.mean([one[of] < SURE for one in marked])
        lines.append(f"p < {SURE:g} by the {of} of {sure:.1%} of these")
    others = {"by another key": [one["other"] for one in judged], "documentation": written}
    for name, p_values in others.items():
        sizes = np.sort(p_values)
        places = np.arange(len(sizes) + 1) / len(sizes)
        gap = max((places[1:] - sizes).max(), (sizes - places[:-1]).max())
        smirnov = f"{gap:.3f}, p = {smirnov_p(gap, len(sizes)):.2f}"
        lines.append(f"{name}: Kolmogorov-Smirnov distance {smirnov}, least {sizes[0]:.2g}")
    plain, keyed = np.sum(turns, axis=0)
    return [*lines, f"tokens a second by the key over those without: {plain / keyed:.3f}"]


def smirnov_p(gap: float, count: int) -> float:
    """Return the asymptotic p-value of a Kolmogorov-Smirnov distance."""
    x = gap * count**0.5
    terms = (-1) ** np.arange(100) * np.exp(-2 * (np.arange(1, 101) * x) ** 2)
    return float(min(1.0, 2 * terms.sum()))


if __name__ == "__main__":
    main()
