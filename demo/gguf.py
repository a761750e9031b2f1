"""A published model in llama.cpp, with its own output layer and with ours: `python -m demo.gguf`.

The model is fetched (`published.py`) and indexed once; llama.cpp alone and each grade of an answer
write a sentence in turns. All tokens are compared with the argmax of float64 logits.
"""

import inspect
import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from demo.published import CACHE, MODELS, model_file
from demo.show import Stages
from demo.truth import argmax
from logitsieve.api.errors import LogitsieveError
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.results import Float32
from logitsieve.client.llamacpp import Generation, LlamaContext, attach, generate
from logitsieve.decoding import LocalDecoder
from logitsieve.heads.sketch import GRADES
from logitsieve.index import Index, open_index
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.capture.llamacpp import gguf_primer

ALONE = "llama.cpp alone"
WAYS: Mapping[str, ModelSpec] = {
    f"max_error {grade:g}": {"head": "sketch", "max_error": grade} for grade in GRADES
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command; the fields carry their help."""

    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "gemma-3-270m"
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = (
        "The history of the city of Rome begins"
    )
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a continuation.")] = 48
    rounds: Annotated[int, typer.Option(min=1, help="Times that each writes it.")] = 3
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1
    cache: Annotated[Path, typer.Option(help="Models and indexes.")] = CACHE


@dataclass
class Run:
    """One way's continuation, and the speed of each round."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    rows: float = 0.0  # exact logits computed for a token
    proven: int = 0
    speeds: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Tokens a second, the median."""
        return statistics.median(self.speeds)


def main(**values: Any) -> None:
    """Write a sentence by a published model in llama.cpp, alone and with each grade."""
    try:
        show(Options(**values), Console())
    except LogitsieveError as error:
        sys.exit(f"error: {error}")


def show(options: Options, console: Console) -> None:
    """Run the stages and print their results."""
    stages = Stages(console)
    path = model_file(options.model, options.cache)
    stages.done("fetch", f"{path}, {path.stat().st_size / 1e6:.0f} MB")
    index = indexed(path, options.threads, stages)
    with LlamaContext(path, threads=options.threads) as context:
        stages.title(f"{options.model}: V = {index.vocab_size:,}, D = {index.dim}")
        runs = race(context, LocalDecoder(index), options)
        hidden_states = {
            name: replayed(context, options.prompt, run.ids) for name, run in runs.items()
        }
        right = {
            name: int((argmax(context.gguf.matrix, hidden_states[name]) == np.array(run.ids)).sum())
            for name, run in runs.items()
        }
        stages.done("write", f"{options.rounds} times in turns; {context.host.system_info}")
    for name, run in runs.items():
        same = name != ALONE and run.text == runs[ALONE].text
        text = "the same" if same else f"{options.prompt}{run.text}"
        console.print(f"{name}: {text}", markup=False, highlight=False)
    console.print(table(runs, right))


def indexed(path: Path, threads: int, stages: Stages) -> Index:
    """Return the index in the model's folder; build it if it is missing."""
    folder = path.parent / "index" / "1"
    if not folder.exists():
        with stages.bars() as bars:
            build(
                path,
                None,
                gguf_primer(path, os.cpu_count() or 1, bars),
                folder,
                heads=("full", "sketch"),
                config=BuildConfig(threads=os.cpu_count() or 1),
                progress=bars,
            ).close()
    index = open_index(folder, threads=threads)
    LocalDecoder(index).warm()
    size = sum(entry.size for entry in index.manifest.files()) / 1e6
    stages.done("build", f"{folder}, {size:.0f} MB")
    return index


def race(context: LlamaContext, decoder: LocalDecoder, options: Options) -> dict[str, Run]:
    """Return each way's continuation; they take turns, and the first turn warms up."""
    runs = {name: Run() for name in (ALONE, *WAYS)}
    for turn in range(options.rounds + 1):
        for name, run in runs.items():
            with writing(context, decoder, name, options) as made:
                for _ in made:
                    pass
            counts = made.counts
            run.text, run.ids = made.texts[0], made.ids[0]
            run.rows, run.proven = counts.scanned / counts.tokens, counts.proven
            if turn:
                run.speeds.append(counts.tokens / counts.seconds)
    return runs


@contextmanager
def writing(
    context: LlamaContext, decoder: LocalDecoder, name: str, options: Options
) -> Iterator[Generation]:
    """Yield one way's continuation, to be iterated over."""
    asked: dict[str, Any] = {"max_tokens": options.tokens, "ignore_end": True}
    if name == ALONE:
        yield generate(context, options.prompt, **asked)
        return
    with attach(context, decoder, **WAYS[name]) as attached:
        yield attached.generate(options.prompt, **asked)


def replayed(context: LlamaContext, prompt: str, ids: list[int]) -> Float32:
    """Return the hidden states [tokens, D] that the tokens were chosen from."""
    context.forget()
    context.headless = True
    rows = [context.read(context.tokenize(prompt))]
    rows += [context.step({0: token}) for token in ids[:-1]]
    context.headless = False
    return np.concatenate(rows)


def table(runs: Mapping[str, Run], right: Mapping[str, int]) -> Table:
    """Return a table of the ways; `right` tokens of each are the float64 argmax."""
    alone = runs[ALONE]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", "tokens/s", "", "rows a token", "float64 argmax", "proven"):
        shown.add_column(title, justify="right" if title else "left", no_wrap=True)
    for name, run in runs.items():
        shown.add_row(
            name,
            f"{run.speed:,.1f}",
            f"{run.speed / alone.speed:.2f}x",
            f"{run.rows:,.0f}",
            f"{right[name]} of {len(run.ids)}",
            f"{run.proven}" if run.proven else "",
        )
    return shown


main.__signature__ = inspect.signature(Options)  # type: ignore[attr-defined]

if __name__ == "__main__":
    typer.run(main)
