"""A published model in Transformers: `python -m benchmarks.huggingface smollm2-135m`.

`from_pretrained(folder, gguf_file=...)` reads the GGUF file and makes float32 of its blocks, so an
index of the stored rows fits the model's output layer: the values are the same. The model generates
with its own layer and with a decoder attached, in turns, on one thread; ids are compared.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import raw
from benchmarks.llamacpp.__main__ import prepared
from benchmarks.llamacpp.contenders import heads_of
from benchmarks.machine import describe
from benchmarks.race.methods import hold_threads
from demo.published import MODELS
from logitsieve.client.huggingface import attach
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index

OUT = raw.RESULTS / "huggingface.json.gz"
PROMPTS = (
    "The history of the city of Rome begins",
    "To install the package, first",
    "Die Geschichte der Stadt beginnt",
    "def reverse(items):\n",
)
NEW, ROUNDS = 32, 5
WAYS: Mapping[str, tuple[int, Mapping[str, Any]]] = {  # prompts at once, options of `generate`
    "greedy, 1 prompt": (1, {"do_sample": False}),
    "greedy, 4 prompts": (4, {"do_sample": False}),
    "4 beams, 1 prompt": (1, {"do_sample": False, "num_beams": 4}),
    "top_k 50, 1 prompt": (1, {"do_sample": True, "top_k": 50, "temperature": 0.8}),
}


def main() -> None:
    """Measure, join the results of the other model, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--ways", nargs="*", default=tuple(WAYS), choices=WAYS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    hold_threads(1)
    folder, index = prepared(options.name)
    file = f"{options.name}.gguf"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model.eval().generation_config.eos_token_id = None  # every text gets as many tokens
    decoder = LocalDecoder(open_index(index))
    decoder.warm()
    results = raw.read(options.out) if options.out.exists() else {}
    ways: dict[str, dict[str, Any]] = results.get(options.name, {}).get("ways", {})
    for way in options.ways:
        count, asked = WAYS[way]
        inputs = tokenizer(list(PROMPTS[:count]), return_tensors="pt", padding=True)
        ways[way] = {}
        for head, target in heads_of(decoder).items():
            found = alternate(model, inputs, decoder, target, asked, options.rounds)
            ways[way][head] = found
            print(way, head, found, flush=True)
        results[options.name] = {"machine": describe(), "ways": ways}
        raw.write(options.out, results)


def alternate(
    model: Any,
    inputs: Mapping[str, Tensor],
    decoder: LocalDecoder,
    target: Any,
    asked: Mapping[str, Any],
    rounds: int,
) -> dict[str, Any]:
    """Microseconds a step and of its output layer, each way in turns; the share of equal ids."""
    times: dict[str, list[float]] = {}
    same = []
    for number in range(rounds + 1):
        full = generated(model, inputs, asked, number)
        with attach(model, decoder, **target):
            ours = generated(model, inputs, asked, number)
        same.append(float((full[2] == ours[2]).float().mean()))
        if number:  # the first one warms up
            spent = zip(("full", "layer", "attached", "head"), full[:2] + ours[:2], strict=True)
            for name, us in spent:
                times.setdefault(f"{name}_us", []).append(us)
    found: dict[str, Any] = {
        name: {"median": statistics.median(each), "least": min(each), "most": max(each)}
        for name, each in times.items()
    }
    return found | {"same": statistics.fmean(same)}


def generated(
    model: Any, inputs: Mapping[str, Tensor], asked: Mapping[str, Any], seed: int
) -> tuple[float, float, Tensor]:
    """Microseconds a step in all and in the output layer, and the ids that were made."""
    layer: nn.Module = model.get_output_embeddings()
    spent, began = [0.0], [0.0]
    hooks = [
        layer.register_forward_pre_hook(lambda *_: began.__setitem__(0, time.perf_counter())),
        layer.register_forward_hook(
            lambda *_: spent.__setitem__(0, spent[0] + time.perf_counter() - began[0])
        ),
    ]
    torch.manual_seed(seed)
    start = time.perf_counter()
    with torch.no_grad():
        ids = model.generate(**inputs, **asked, max_new_tokens=NEW)
    seconds = time.perf_counter() - start
    for hook in hooks:
        hook.remove()
    return 1e6 * seconds / NEW, 1e6 * spent[0] / NEW, ids[:, inputs["input_ids"].shape[1] :]


if __name__ == "__main__":
    main()
