"""Translate test.tsv by beam search over one index, beside the full softmax of three libraries.

    python -m benchmarks.translate --capture beams.npz           # W, b and contexts of beams of 5
    logitsieve build --weight beams.npz:W --bias beams.npz:b --contexts beams.npz:H_fit \
        --heldout beams.npz:H_heldout --labels 20 --target-precision p10=0.95 --out MODELS/nmt/1
    python -m benchmarks.translate MODELS/nmt/1                  # --sentences 64: a look
    python -m benchmarks.translate MODELS/nmt/1 --also MODELS/nmt/2   # built without a target

Needs ../shared, and sacrebleu for BLEU (tokenize="none", as the text is tokenised). Times are the
calling thread's, of the softmax and the choice of pairs alone, one thread; the Transformer is the
same for all. Each batch of sentences goes round all contenders.

Vaswani et al. 2017, Attention Is All You Need; pre-norm layers as torch.nn.TransformerDecoder has
them. Shape letters: B hypotheses, T target words so far, D hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import thread_time_ns
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.methods import hold_threads
from benchmarks.race.nmt_contexts import SENTENCES, load_model_file, read_pairs
from benchmarks.race.peers.onnx_runtime import by_rows, session
from benchmarks.race.prepare import SHARED
from logitsieve.api.results import Float32, Int32
from logitsieve.cli.output import bars
from logitsieve.client.beam_search import beam_search
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import open_index

MOST_WORDS = 80
CAPTURED_EVERY, HELDOUT = 15, 300  # sentences of train.tsv, of valid.tsv
POINTS: dict[str, dict[str, Any]] = {
    "logitsieve": {},
    "logitsieve, p10 >= 0.99": {"min_precision": 0.99},
    "logitsieve, proven": {"exact": True},
    "screen, candidates alone": {"head": "screen", "normalizer": "candidates"},
}
WITHOUT_TARGET = "logitsieve, without a target"
GRAPH = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
head (float[B, {dim}] hidden) => (float[B, V] logits) {{
    logits = com.microsoft.DynamicQuantizeMatMul (hidden, codes, scales, , bias)
}}"""


class Attention:
    """One attention block, its projections taken apart."""

    def __init__(self, block: Any) -> None:
        self.heads, self._out = block.num_heads, block.out_proj
        self._parts = list(
            zip(block.in_proj_weight.chunk(3), block.in_proj_bias.chunk(3), strict=True)
        )

    def project(self, part: int, inputs_BTD: Tensor) -> Tensor:
        """[B, heads, T, D / heads]; part 0 is the query, 1 the key, 2 the value."""
        made = functional.linear(inputs_BTD, *self._parts[part])
        return made.view(*made.shape[:2], self.heads, -1).transpose(1, 2)

    def __call__(self, x_B1D: Tensor, pair: list[Tensor], mask: Tensor | None = None) -> Tensor:
        query = self.project(0, x_B1D)
        found = functional.scaled_dot_product_attention(query, pair[0], pair[1], mask)
        mixed: Tensor = self._out(found.transpose(1, 2).flatten(2))
        return mixed


class Translating:
    """Sentences being translated, a word at a time: `step` is what `beam_search` calls."""

    @torch.inference_mode()
    def __init__(self, model: Any, sentences: list[list[str]], start: int) -> None:
        memory, padded = model.encode(model.batch(sentences))
        self._model, self._decoder = model, model.transformer.decoder
        self._own = [Attention(layer.self_attn) for layer in self._decoder.layers]
        self._cross = [Attention(layer.multihead_attn) for layer in self._decoder.layers]
        self._mask, rows, heads = ~padded[:, None, None], len(sentences), self._own[0].heads
        self._memory = [[block.project(part, memory) for part in (1, 2)] for block in self._cross]
        empty = memory.new_empty(rows, heads, 0, memory.shape[2] // heads)
        self._words = [[empty, empty] for _ in self._own]
        self.start = self._read(np.full(rows, start, np.int32))

    @torch.inference_mode()
    def step(self, parents: Int32, tokens: Int32) -> Float32:
        chosen = torch.from_numpy(parents).long()
        self._mask = self._mask[chosen]
        self._words = [[each[chosen] for each in pair] for pair in self._words]
        self._memory = [[each[chosen] for each in pair] for pair in self._memory]
        return self._read(tokens)

    def _read(self, tokens: Int32) -> Float32:
        place = self._words[0][0].shape[2]
        x_BD = self._model.target(torch.from_numpy(tokens).long()) * 4 + self._model.position[place]
        x_B1D = x_BD[:, None]
        for number, layer in enumerate(self._decoder.layers):
            own, inputs = self._own[number], layer.norm1(x_B1D)
            now = [own.project(part, inputs) for part in (1, 2)]
            pairs = zip(self._words[number], now, strict=True)
            self._words[number] = [torch.cat(pair, dim=2) for pair in pairs]
            x_B1D = x_B1D + own(inputs, self._words[number])
            x_B1D = x_B1D + self._cross[number](
                layer.norm2(x_B1D), self._memory[number], self._mask
            )
            inner = functional.relu(layer.linear1(layer.norm3(x_B1D)))
            x_B1D = x_B1D + layer.linear2(inner)
        hidden_states: Float32 = self._decoder.norm(x_B1D)[:, 0].numpy()
        return hidden_states


class Peer:
    """All logits, a log-softmax and the best sums of each group, by torch."""

    def __init__(self, logits: Callable[[Float32], Tensor]) -> None:
        self._logits = logits

    @torch.inference_mode()
    def beam_step(
        self,
        hidden_states: Float32,
        scores: Float32,
        *,
        beams_in: int,
        beams_out: int,
        **options: Any,
    ) -> Any:
        sums = torch.log_softmax(self._logits(hidden_states), dim=1)
        sums += torch.from_numpy(np.asarray(scores, np.float32)).reshape(-1, 1)
        size = sums.shape[1]
        values, best = torch.topk(sums.view(-1, beams_in * size), beams_out)
        parents, tokens = (each.astype(np.int32) for each in np.divmod(best.numpy(), size))
        ended, ranks = np.isin(tokens, options["eos_ids"]), values.numpy()
        answer = SimpleNamespace(proven=np.zeros(len(hidden_states), np.bool_))
        return SimpleNamespace(
            parents=parents,
            tokens=tokens,
            scores=ranks,
            normalized_scores=ranks,
            finished=ended,
            answer=answer,
        )


def peers(softmax: Softmax) -> dict[str, Peer]:
    from onnx import numpy_helper, parser

    weight_DV, bias = softmax.weight.T, softmax.bias
    half, half_bias = (torch.from_numpy(each.copy()).bfloat16() for each in (weight_DV.T, bias))
    codes, scales = by_rows(softmax)
    model = parser.parse_model(GRAPH.format(dim=softmax.dim))
    named = {"codes": codes, "scales": scales, "bias": bias}
    model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in named.items())
    int8 = session(model.SerializeToString(), 1)

    def by_torch(hidden_states: Float32) -> Tensor:
        rows = torch.from_numpy(hidden_states).bfloat16()
        return functional.linear(rows, half, half_bias).float()

    return {
        "numpy": Peer(lambda hidden_states: torch.from_numpy(hidden_states @ weight_DV + bias)),
        "torch bf16": Peer(by_torch),
        "ONNX int8": Peer(lambda h: torch.from_numpy(int8.run(("logits",), {"hidden": h})[0])),
    }


@dataclass
class Clocked:
    """A decoder with the time of its calls."""

    decoder: Any
    spec: dict[str, Any]
    nanoseconds: int = 0
    rows: int = 0

    def beam_step(self, hidden_states: Float32, scores: Float32, **options: Any) -> Any:
        start = thread_time_ns()
        reply = self.decoder.beam_step(hidden_states, scores, **options, **self.spec)
        self.nanoseconds += thread_time_ns() - start
        self.rows += len(hidden_states)
        return reply


def main() -> None:
    parser = raw.parser(__doc__, "translate.json.gz")
    parser.add_argument("index", type=Path, nargs="?", help="NAME/VERSION of an index of the model")
    parser.add_argument("--also", type=Path, metavar="INDEX", help="another, asked for its default")
    parser.add_argument("--capture", type=Path, metavar="FILE.npz", help="write contexts, and end")
    parser.add_argument("--sentences", type=int, default=1000, help="of test.tsv")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    options = parser.parse_args()
    hold_threads(1)
    folder = SHARED / "data" / "nmt-de-en"
    module = load_model_file(folder / "nmt_model.py")
    model = module.Translator.load(folder)
    if options.capture:
        capture(module, model, folder, options.capture)
        return
    if not options.index:
        parser.error("name an index, or a file for --capture")
    index = open_index(options.index)
    pairs = read_pairs(folder / "test.tsv")[: options.sentences]
    local, searches = LocalDecoder(index), {}
    for beams in options.beams:
        racing = {name: Clocked(peer, {}) for name, peer in peers(index.softmax).items()}
        racing["full"] = Clocked(local, {"head": "full"})
        points = {n: t for n, t in POINTS.items() if t.get("head", "full") in index.heads}
        racing |= {name: Clocked(local, spec) for name, spec in points.items()}
        if options.also:
            racing[WITHOUT_TARGET] = Clocked(LocalDecoder(open_index(options.also)), {})
        searches[f"beam {beams}"] = search(module, model, pairs, racing, beams)
    raw.write(options.out, {"machine": describe(), "index": index.digest, "searches": searches})


def capture(module: Any, model: Any, folder: Path, out: Path) -> None:
    """Write W, b, and the contexts that beams of 5 meet: of train.tsv, and of valid.tsv."""
    weight, bias = (each.detach().numpy() for each in (model.output.weight, model.output.bias))
    texts = {"H_fit": read_pairs(folder / "train.tsv.gz")[::CAPTURED_EVERY]}
    texts["H_heldout"] = read_pairs(folder / "valid.tsv")[:HELDOUT]
    asked: dict[str, Any] = {"num_beams": 5, "eos_ids": [module.END], "max_tokens": MOST_WORDS}
    found: dict[str, list[Float32]] = {name: [] for name in texts}
    with bars() as progress:
        for name, pairs in texts.items():

            def logits(hidden_states: Float32, kept: list[Float32] = found[name]) -> Tensor:
                kept.append(hidden_states)
                return torch.from_numpy(hidden_states @ weight.T + bias)

            for start in range(0, len(pairs), SENTENCES):
                sources = [source for source, _ in pairs[start : start + SENTENCES]]
                state = Translating(model, sources, module.START)
                beam_search(Peer(logits), state.start, state.step, **asked)  # type: ignore[arg-type]
                progress(name, min(start + SENTENCES, len(pairs)), len(pairs))
    fit, heldout = (np.concatenate(found[name]) for name in texts)
    np.savez(out, W=weight, b=bias, H_fit=fit, H_heldout=heldout)


def search(
    module: Any, model: Any, pairs: Any, racing: dict[str, Clocked], beams: int
) -> dict[str, Any]:
    """BLEU, time and likeness to `full`, one of `racing`, of each."""
    from sacrebleu import corpus_bleu

    found: dict[str, list[tuple[int, ...]]] = {name: [] for name in racing}
    asked: dict[str, Any] = {"num_beams": beams, "eos_ids": [module.END], "max_tokens": MOST_WORDS}

    def translate(decoder: Any, sources: list[list[str]]) -> list[tuple[int, ...]]:
        state = Translating(model, sources, module.START)
        ended = beam_search(decoder, state.start, state.step, **asked).hypotheses
        return [best.tokens for best, *_ in ended]

    for clocked in racing.values():  # kernels are compiled at their first call
        translate(clocked, [pairs[0][0]])
        clocked.nanoseconds = clocked.rows = 0
    with bars() as progress:
        for start in range(0, len(pairs), SENTENCES):
            sources = [source for source, _ in pairs[start : start + SENTENCES]]
            for name, clocked in racing.items():
                found[name] += translate(clocked, sources)
            progress(f"beam {beams}", min(start + SENTENCES, len(pairs)), len(pairs))
    figures, references = {}, [" ".join(target) for _, target in pairs]
    for name, clocked in racing.items():
        lines = [" ".join(model.target_words[w] for w in t if w > 2) for t in found[name]]
        same = [ours == true for ours, true in zip(found[name], found["full"], strict=True)]
        figures[name] = {
            "bleu": corpus_bleu(lines, [references], tokenize="none", force=True).score,
            "us_per_row": clocked.nanoseconds / clocked.rows / 1000,
            "same_as_exact": float(np.mean(same)),
        }
        print(f"beam {beams} {name:26}", {key: round(v, 4) for key, v in figures[name].items()})
    return figures


if __name__ == "__main__":
    main()
