"""A GPT-2-shaped model of 50,257 words with and without us. `python -m benchmarks.huggingface`.

The model is made from its config and trained a little on the bundled text, whose tokens are words
and, as there are fewer of those, pairs of words that often meet. Its output layer is then captured,
indexed and attached. Runs with and without us alternate; a time is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.machine import describe
from benchmarks.race.bars import bars
from benchmarks.race.methods import hold_threads
from benchmarks.race.prepare import CACHE
from demo.excerpt import EXCERPT, read_paragraphs, split
from logitsieve.client.huggingface import attach
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index, open_index
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.capture import CaptureConfig, capture

OUT = Path(__file__).parent / "results" / "huggingface.json"
VOCABULARY = 50_257
END = 0
WINDOW, WINDOWS = 64, 8  # tokens read at a stretch, stretches of a training step
PROMPT = 16
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, repetition_penalty 1.3": {"repetition_penalty": 1.3},
    "4 beams": {"num_beams": 4},
    "top_k 50": {"do_sample": True, "top_k": 50},
}
Progress = Callable[[str, int, int], None]


def main() -> None:
    """Train, capture, index, then generate in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=768, help="hidden size")
    parser.add_argument("--layers", type=int, default=2, help="of the Transformer; GPT-2 has 12")
    parser.add_argument("--steps", type=int, default=300, help="of training, 512 tokens each")
    parser.add_argument("--contexts", type=int, default=60_000, help="captured")
    parser.add_argument("--tokens", type=int, default=32, help="generated for each prompt")
    parser.add_argument("--rounds", type=int, default=5, help="of each mode and batch")
    parser.add_argument("--train-threads", type=int, default=2, help="of training and capturing")
    parser.add_argument("--cache", type=Path, default=CACHE, help="model and index")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    train, held_out = (tokens_of(part) for part in tokenised())
    hold_threads(options.train_threads)
    with bars() as progress:
        model, index = prepared(train, options, progress)
        hold_threads(1)
        results = measured(model, index, held_out, options, progress)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = markdown(results)
    options.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def tokenised() -> Iterator[list[str]]:
    """Words of the text to train on, then of what is held out; a paragraph ends in <eos>."""
    for paragraphs in split(read_paragraphs(EXCERPT)):
        yield [word for paragraph in paragraphs for word in (*paragraph.split(), "<eos>")]


def tokens_of(words: list[str]) -> Tensor:
    """int64 [N]: the longest tokens from left to right, END for a word of none."""
    ids, found, place = token_ids(), [], 0
    while place < len(words):
        pair = " ".join(words[place : place + 2])
        found.append(ids[pair] if pair in ids else ids.get(words[place], END))
        place += 2 if pair in ids else 1
    return torch.tensor(found)


@cache
def token_ids() -> dict[str, int]:
    """The words of the training text, then pairs by their frequency, `VOCABULARY` in all."""
    words = next(tokenised())
    singles = [word for word, _ in Counter(words).most_common() if word != "<eos>"]
    pairs = Counter(" ".join(pair) for pair in pairwise(words))
    often = (pair for pair, _ in pairs.most_common() if "<eos>" not in pair)
    tokens = ["<eos>", *singles, *often][:VOCABULARY]
    return {token: number for number, token in enumerate(tokens)}


def prepared(train: Tensor, options: argparse.Namespace, progress: Progress) -> tuple[Any, Index]:
    """The trained model and its index, from the cache if they are there."""
    name = f"gpt2-{options.dim}x{options.layers}-{options.steps}-{options.contexts}"
    folder = options.cache / "huggingface" / name
    if not (folder / "model").exists():
        trained(train, options, progress).save_pretrained(folder / "model")
    model: Any = GPT2LMHeadModel.from_pretrained(folder / "model", local_files_only=True)
    model.eval()
    windows = torch.split(train[: len(train) // WINDOW * WINDOW].view(-1, WINDOW), WINDOWS)
    if not (folder / "contexts").exists():
        every = max(1, len(train) // options.contexts)
        capture(
            model,
            windows[::every],
            folder / "contexts",
            config=CaptureConfig(max_rows=options.contexts),
            progress=progress,
        )
    path = folder / "index" / "1"
    if not path.exists():
        contexts = folder / "contexts"
        build(
            str(contexts / "weight.npy"),
            str(contexts / "bias.npy"),
            str(contexts),
            path,
            heads=("exact", "screen", "certified"),
            config=BuildConfig(clusters=100, budget=400),
            progress=progress,
        ).close()
    return model, open_index(path, threads=1)


def trained(train: Tensor, options: argparse.Namespace, progress: Progress) -> Any:
    """AdamW on windows drawn at random."""
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=256,
            n_embd=options.dim,
            n_layer=options.layers,
            n_head=max(1, options.dim // 64),
            bos_token_id=END,
            eos_token_id=END,
            pad_token_id=END,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        starts = torch.randint(len(train) - WINDOW, (WINDOWS, 1))
        ids = train[starts + torch.arange(WINDOW)]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress("train", step + 1, options.steps)
    return model


def measured(
    model: Any, index: Index, held_out: Tensor, options: argparse.Namespace, progress: Progress
) -> dict[str, Any]:
    """Every mode at 1 and at 8 prompts a call."""
    decoder, modes = LocalDecoder(index), {}
    for number, (mode, settings) in enumerate(MODES.items()):
        for batch in (1, 8):
            starts = torch.linspace(0, len(held_out) - PROMPT - 1, options.rounds * batch).long()
            prompts = torch.split(held_out[starts[:, None] + torch.arange(PROMPT)], batch)
            modes[f"{mode}, B = {batch}"] = in_turns(model, decoder, prompts, settings, options)
        progress("generate", number + 1, len(MODES))
    return {
        "machine": describe(),
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "layers": options.layers,
        "threads": 1,
        "precision": "float32",
        "knobs": {name: dict(index.head(name).knobs) for name in index.heads},
        "modes": modes,
    }


def in_turns(
    model: Any,
    decoder: LocalDecoder,
    prompts: Sequence[Tensor],
    settings: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Microseconds a step with and without us, in all and of the layer; the share of equal ids."""
    times: dict[str, list[tuple[float, float]]] = {"full": [], "certified": []}
    same = []
    for ids in (prompts[0], *prompts):  # the first is only to warm up
        chosen = []
        for name, found in times.items():
            with ExitStack() as stack:
                if name == "certified":
                    stack.enter_context(attach(model, decoder, head="certified"))
                layer_ns = stack.enter_context(timed(model.get_output_embeddings()))
                torch.manual_seed(0)
                start = perf_counter_ns()
                made = generate(model, ids, settings, options.tokens)
                taken = perf_counter_ns() - start
            steps = len(layer_ns)
            found.append((taken / steps / 1000, sum(layer_ns) / steps / 1000))
            chosen.append(made.tolist())
        same.append(chosen[0] == chosen[1])
    return {
        "same_ids": sum(same[1:]) / len(prompts),
        "us_per_step": {
            name: {
                "all": statistics.median(each[0] for each in found[1:]),
                "output_layer": statistics.median(each[1] for each in found[1:]),
            }
            for name, found in times.items()
        },
    }


def generate(model: Any, ids: Tensor, settings: dict[str, Any], tokens: int) -> Tensor:
    """Exactly so many tokens after `ids`, whatever they are."""
    chosen = {"do_sample": False, "eos_token_id": None} | settings
    mask = torch.ones_like(ids)
    made: Tensor = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, **chosen)
    return made


@contextmanager
def timed(layer: torch.nn.Module) -> Iterator[list[int]]:
    """Nanoseconds of each call of the layer."""
    taken: list[int] = []

    def begin(*_: Any) -> None:
        taken.append(-perf_counter_ns())

    def end(*_: Any) -> None:
        taken[-1] += perf_counter_ns()

    hooks = [layer.register_forward_pre_hook(begin), layer.register_forward_hook(end)]
    try:
        yield taken
    finally:
        for hook in hooks:
            hook.remove()


def markdown(results: dict[str, Any]) -> str:
    """Conditions and a table."""
    lines = [
        f"{results['machine']['cpu']}, {results['threads']} thread, V = {results['vocab_size']:,}, "
        f"D = {results['dim']}, {results['layers']} layers, {results['precision']}; microseconds a "
        "step of `generate`, medians of alternating runs.",
        "",
        "| | full softmax | of it the output layer | certified | of it the output layer | "
        "layer's speed-up | same ids |",
        "|---|---|---|---|---|---|---|",
    ]
    for mode, found in results["modes"].items():
        full, ours = (found["us_per_step"][name] for name in ("full", "certified"))
        lines.append(
            f"| {mode} | {full['all']:.0f} | {full['output_layer']:.0f} | {ours['all']:.0f} "
            f"| {ours['output_layer']:.0f} | {full['output_layer'] / ours['output_layer']:.1f}x "
            f"| {found['same_ids']:.0%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
