"""Trains the demo's language model: `python -m demo.train --text FILE.gz --out demo/model`.

Truncated back-propagation through time over one contiguous stream of words, AdamW with a warm-up
and cosine decay. The last tenth of the bundled excerpt is never trained on; it is the validation
text, and the epoch that is best on it is kept.

Shape letters: B streams, T time steps, D hidden size, V vocabulary.
"""

import inspect
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.autograd import backward
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from demo.excerpt import EXCERPT, read_paragraphs, split
from demo.language_model import LanguageModel, State, Vocabulary

LOSS_ROWS = 280
"""Rows of logits turned into a loss at once: 11 MB of float32 stays in the heap of the allocator,
where the whole batch's would be mapped and unmapped each step, which takes half of the time."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command; the fields carry their help."""

    text: Annotated[list[Path], typer.Option(help="Text, one paragraph a line, gzipped.")]
    out: Annotated[Path, typer.Option(help="Folder for the model.")]
    held_out: Annotated[Path, typer.Option(help="Text whose last tenth is held out.")] = EXCERPT
    vocabulary: Annotated[int, typer.Option(min=2, help="Words in the vocabulary.")] = 10_000
    dim: Annotated[int, typer.Option(min=1, help="Hidden size, D.")] = 200
    layers: Annotated[int, typer.Option(min=1, help="LSTM layers.")] = 2
    dropout: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share dropped.")] = 0.2
    epochs: Annotated[int, typer.Option(min=1, help="Times through the text.")] = 10
    streams: Annotated[int, typer.Option(min=1, help="Parallel streams of text, B.")] = 32
    steps: Annotated[int, typer.Option(min=1, help="Words back-propagated through, T.")] = 35
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 3e-3
    weight_decay: Annotated[float, typer.Option(help="AdamW weight decay.")] = 0.01
    clip: Annotated[float, typer.Option(help="Highest norm of the gradient.")] = 0.5
    bfloat16: Annotated[bool, typer.Option(help="bfloat16 products, float32 weights.")] = True
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1
    seed: Annotated[int, typer.Option(help="Seed of weights, dropout and streams.")] = 1


def encode(vocabulary: Vocabulary, paragraphs: list[str]) -> Tensor:
    """int64 [N]: the ids of all words, each paragraph closed by `<eos>`."""
    return torch.tensor(vocabulary.encode("".join(f"{paragraph}\n" for paragraph in paragraphs)))


def batches(ids_N: Tensor, streams: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and next words, int64 [B, T] each; row b goes on where it ended in the batch before.

    The words that fill no whole batch at the end of the streams are left out.
    """
    length = (len(ids_N) - 1) // streams
    inputs_BN = ids_N[: streams * length].view(streams, length)
    targets_BN = ids_N[1 : streams * length + 1].view(streams, length)
    for start in range(0, length - steps + 1, steps):
        yield inputs_BN[:, start : start + steps], targets_BN[:, start : start + steps]


def mean_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross entropy in nats, summed in float32."""
    logits = torch.split(logits_BTV.flatten(0, 1), LOSS_ROWS)
    targets = torch.split(targets_BT.flatten(), LOSS_ROWS)
    losses = [
        cross_entropy(rows.float(), words, reduction="sum")
        for rows, words in zip(logits, targets, strict=True)
    ]
    return torch.stack(losses).sum() / targets_BT.numel()


@torch.inference_mode()
def perplexity(model: LanguageModel, ids_N: Tensor, streams: int = 8, steps: int = 35) -> float:
    """exp of the mean cross entropy of the next word, in float32."""
    model.eval()
    state: State | None = None
    losses = []
    for inputs, targets in batches(ids_N, streams, steps):
        logits, state = model(inputs, state)
        losses.append(mean_loss(logits, targets).item())
    return math.exp(sum(losses) / len(losses))


class Trainer:
    """One model, its optimizer and its schedule."""

    def __init__(self, options: Options, model: LanguageModel, ids_N: Tensor) -> None:
        self.options, self.model, self.ids_N = options, model, ids_N
        self.per_epoch = (len(ids_N) - 1) // options.streams // options.steps
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            max_lr=options.lr,
            total_steps=options.epochs * self.per_epoch,
            pct_start=0.02,
            cycle_momentum=False,
        )

    def epoch(self) -> Iterator[float]:
        """Trains once through the text, cut into streams at new places; yields each step's loss."""
        self.model.train()
        state: State | None = None
        shift = random.randrange(len(self.ids_N))
        text = self.ids_N.roll(shift)
        for inputs, targets in batches(text, self.options.streams, self.options.steps):
            loss, state = self.step(inputs, targets, state)
            yield loss

    def step(self, inputs: Tensor, targets: Tensor, state: State | None) -> tuple[float, State]:
        """One update; the state comes back cut off from the graph."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bfloat16):
            logits, (hidden, cell) = self.model(inputs, state)
        loss = mean_loss(logits, targets)
        self.optimizer.zero_grad()
        backward(loss)
        clip_grad_norm_(self.model.parameters(), self.options.clip)
        self.optimizer.step()
        self.schedule.step()
        return loss.item(), (hidden.detach(), cell.detach())


def fit(trainer: Trainer, valid: Tensor, progress: Progress) -> list[float]:
    """Trains all epochs, saves the best in `out`; gives the validation perplexity of each."""
    options, perplexities = trainer.options, list[float]()
    words_a_step = options.streams * options.steps
    task = progress.add_task("", total=options.epochs * trainer.per_epoch)
    begin = time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        loss = math.log(options.vocabulary)
        for step, step_loss in enumerate(trainer.epoch(), start=1):
            loss += (step_loss - loss) / min(step, 100)
            done = (epoch - 1) * trainer.per_epoch + step
            rate = done * words_a_step / (time.perf_counter() - begin)
            status = f"epoch {epoch}  {rate:,.0f} words/s  loss {loss:.3f}"
            progress.update(task, advance=1, description=status)
        perplexities.append(perplexity(trainer.model, valid))
        progress.console.print(f"{status}  valid perplexity {perplexities[-1]:.2f}")
        if perplexities[-1] == min(perplexities):
            trainer.model.save(options.out)
    return perplexities


def train(options: Options) -> None:
    """Writes model.safetensors, vocab.txt and training.json into `options.out`."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    _, held_out = split(read_paragraphs(options.held_out))
    unseen = set(held_out)
    paragraphs = [
        paragraph
        for path in options.text
        for paragraph in read_paragraphs(path)
        if paragraph not in unseen
    ]
    vocabulary = Vocabulary.most_frequent(paragraphs, options.vocabulary)
    vocabulary.save(options.out)
    ids, valid = encode(vocabulary, paragraphs), encode(vocabulary, held_out)
    model = LanguageModel(len(vocabulary), options.dim, options.layers, options.dropout)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    begin = time.perf_counter()
    with Progress(*columns) as progress:
        perplexities = fit(Trainer(options, model, ids), valid, progress)
    report = {
        "settings": {**asdict(options), "text": [path.name for path in options.text]},
        "words": {"train": len(ids), "valid": len(valid)},
        "seconds": round(time.perf_counter() - begin),
        "valid_perplexity": [round(value, 2) for value in perplexities],
    }
    text = json.dumps(report, indent=2, default=lambda path: path.name) + "\n"
    (options.out / "training.json").write_text(text, encoding="utf-8", newline="\n")


def main(**values: Any) -> None:
    """Train the demo's language model."""
    train(Options(**values))


main.__signature__ = inspect.signature(Options)  # type: ignore[attr-defined]

if __name__ == "__main__":
    typer.run(main)
