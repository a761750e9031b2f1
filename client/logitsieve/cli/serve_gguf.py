import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.generate import DENSE, SOFTCAPPED, HeadOptions
from logitsieve.cli.options import idle_cores, say_engine
from logitsieve.completions import CompletionsConfig

if TYPE_CHECKING:
    from logitsieve.completions.supervisor import Line


def command(
    heads: HeadOptions,
    config: CompletionsConfig,
    given: Annotated[
        Path | None, typer.Option("--model", "-m", help="The model, instead of the argument.")
    ] = None,
    gguf: Annotated[Path | None, typer.Argument(metavar="MODEL", help="The model, GGUF.")] = None,
) -> None:
    """Score and continue texts by a GGUF model over HTTP, with OpenAI's interface.

    Log-probabilities of prompts (echo with logprobs) are exact and do not depend on other requests;
    draws depend only on their seed. llama.cpp's own output layer answers until an index is made.

    Example: logitsieve serve-gguf model.gguf --port 8080
    """
    from logitsieve.completions.serve import serve

    model = given or gguf
    if model is None or None not in (given, gguf):
        got = "nothing" if model is None else f"both {gguf} and --model {model}"
        raise InvalidRequest("model", got, "one file")
    serve(config, config.alias or model.stem, partial(_engine, model, heads, config))


def _engine(path: Path, heads: HeadOptions, config: CompletionsConfig, line: "Line") -> None:
    from logitsieve.client.llamacpp_generation import GenerationCost
    from logitsieve.completions.worker import answer
    from logitsieve.llamacpp import open_context

    threads, model = heads.threads or idle_cores(), heads.model(path)
    size: dict[str, Any] = {"sequences": config.parallel, "threads": threads, "separate": True}
    if config.ctx_size is not None:
        size["positions"] = config.ctx_size * config.parallel
    with open_context(model, heads.engine, **size) as context:
        say_engine(context, heads.engine)
        dense = heads.head == DENSE
        if not dense and model.softcap is not None:
            if heads.index is not None:
                raise InvalidRequest("index", heads.index, "none: the model caps its logits")
            print(SOFTCAPPED, file=sys.stderr)
            dense = True
        with heads.attached(context, threads, dense=dense) as handover:

            def index_hash() -> str:
                return "" if handover.decoder is None else handover.decoder.index.digest

            answer(
                handover.attached,
                config,
                config.alias or path.stem,
                line,
                before_turn=lambda: handover.follow(GenerationCost()),
                head_name=lambda: handover.head,
                index_hash=index_hash,
            )
