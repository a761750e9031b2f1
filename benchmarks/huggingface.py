"""A published model in Transformers: `python -m benchmarks.huggingface smollm2-135m`.

`from_pretrained(folder, gguf_file=...)` reads the GGUF file and makes float32 of its blocks, so an
index of the stored rows fits the model's output layer: the values are the same. The model generates
with its own layer and with a decoder attached, in turns, on one thread; ids are compared.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import raw
from benchmarks.llamacpp.__main__ import prepared
from benchmarks.llamacpp.contenders import heads_of
from benchmarks.machine import describe
from benchmarks.race.methods import hold_threads
from benchmarks.timing import spread
from demo.published import MODELS
from logitsieve.client.huggingface import attach
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index

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
    parser = raw.parser(__doc__, "huggingface.json.gz")
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
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
    ways: dict[str, dict[str, Any]] = {}
    for way, (count, asked) in WAYS.items():
        inputs = tokenizer(list(PROMPTS[:count]), return_tensors="pt", padding=True)
        ways[way] = {
            head: alternate(model, inputs, decoder, spec, asked, options.rounds)
            for head, spec in heads_of(decoder).items()
        }
        print(way, ways[way], flush=True)
    results = {"machine": describe(), "ways": ways}
    raw.write(options.out, raw.read(options.out) | {options.name: results})


def alternate(
    model: Any,
    inputs: Mapping[str, Tensor],
    decoder: LocalDecoder,
    spec: Any,
    asked: Mapping[str, Any],
    rounds: int,
) -> dict[str, Any]:
    """Microseconds a step and of its output layer, each way in turns; the share of equal ids."""
    times, same = defaultdict[str, list[float]](list), []
    for number in range(rounds + 1):
        full, layer, theirs = generated(model, inputs, asked, number)
        with attach(model, decoder, **spec):
            attached, head, ours = generated(model, inputs, asked, number)
        same.append(float((theirs == ours).float().mean()))
        if number:  # the first one warms up
            spent = {"full": full, "layer": layer, "attached": attached, "head": head}
            for name, us in spent.items():
                times[f"{name}_us"].append(us)
    return {name: spread(each) for name, each in times.items()} | {"same": statistics.fmean(same)}


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
