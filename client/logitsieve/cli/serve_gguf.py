"""`logitsieve serve-gguf`: an OpenAI-compatible endpoint over a GGUF model."""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.generate import (
    DENSE,
    MAX_ERROR,
    SKETCH,
    SOFTCAPPED,
    Handover,
    head_of,
    model_for,
    spec_of,
)
from logitsieve.cli.options import (
    ENGINE,
    EngineName,
    flag,
    idle_cores,
    index_folder,
    llama_threads,
    say_engine,
)
from logitsieve.completions import CompletionsConfig

if TYPE_CHECKING:
    from logitsieve.completions.supervisor import Line


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    index: Path | None = flag(
        None,
        "An index of the model's output matrix, <name>/<version>. Without it one is made in the"
        " background, and kept in ~/.cache/logitsieve.",
        callback=index_folder,
    )
    head: str = flag(
        "", "A head of the index, by default sketch; dense is llama.cpp's own, and makes no index."
    )
    max_error: float | None = flag(None, MAX_ERROR)
    threads: int | None = llama_threads()
    engine: EngineName = flag("auto", ENGINE)
    model: Path | None = flag(None, "The model, in place of the argument.", "--model", "-m")


def command(
    options: HeadOptions,
    config: CompletionsConfig,
    gguf: Annotated[Path | None, typer.Argument(metavar="MODEL", help="The model, GGUF.")] = None,
) -> None:
    """Score and continue texts by a GGUF model over HTTP, in OpenAI's interface.

    Prompt log-probabilities (echo with logprobs) are exact, and the same in any batch; draws depend
    only on their seed. llama.cpp's own output layer answers until an index is made.

    Example: logitsieve serve-gguf model.gguf --port 8080
    """
    from logitsieve.completions.serve import serve

    model = options.model or gguf
    if model is None or None not in (options.model, gguf):
        got = "nothing" if model is None else f"both {gguf} and --model {model}"
        raise InvalidRequest("model", got, "one file")
    serve(config, config.alias or model.stem, partial(_engine, model, options, config))


def _engine(path: Path, options: HeadOptions, config: CompletionsConfig, line: "Line") -> None:
    from logitsieve.cli.background import index_of_cache, warm_decoder
    from logitsieve.client.llamacpp import attach
    from logitsieve.client.llamacpp_generation import GenerationCost
    from logitsieve.completions.worker import answer
    from logitsieve.llamacpp import open_context

    threads = options.threads or idle_cores()
    model = model_for(path, options.index, options.head, options.max_error)
    positions = None if config.ctx_size is None else config.ctx_size * config.parallel
    with open_context(
        model,
        options.engine,
        sequences=config.parallel,
        positions=positions,
        threads=threads,
        separate=True,
    ) as context:
        say_engine(context, options.engine)
        decoder, making, head = None, None, options.head
        if head != DENSE and model.softcap is not None:
            if options.index is not None:
                raise InvalidRequest("index", options.index, "none: the model caps its logits")
            print(SOFTCAPPED, file=sys.stderr)
            head = DENSE
        if head != DENSE and options.index is not None:
            decoder = warm_decoder(options.index, threads)
            head = head_of(decoder, head)
        elif head != DENSE:
            decoder, making = index_of_cache(model, threads, options.engine)
            head = DENSE if decoder is None else SKETCH
        spec = spec_of(head, options.max_error)
        with making or nullcontext(), attach(context, decoder, **spec) as attached:
            handover = Handover(attached, decoder, making, spec, threads)

            def index_hash() -> str:
                return "" if handover.decoder is None else handover.decoder.index.digest

            answer(
                attached,
                config,
                config.alias or path.stem,
                line,
                before_turn=lambda: handover.follow(GenerationCost()),
                head_name=lambda: handover.head,
                index_hash=index_hash,
            )
