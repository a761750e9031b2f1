"""`logitsieve capture`: contexts from a PyTorch model."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.console import bars, print_json
from logitsieve.cli.options import AsJson, with_options
from logitsieve.index_builder.capture import CaptureConfig, capture
from logitsieve.index_builder.capture_huggingface import LONGEST_WINDOW, WINDOW, open_folder


@with_options(CaptureConfig)
def command(
    out: Annotated[Path, typer.Option(help="The folder to write, which must not exist.")],
    config: CaptureConfig,
    module: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="A function without arguments that returns (model, batches). "
            "The file's code is run: use only code that you trust.",
        ),
    ] = None,
    huggingface: Annotated[
        Path | None,
        typer.Option(help="Folder with a Hugging Face causal language model, instead of --module."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Text for --huggingface to read: UTF-8, plain or gzipped."),
    ] = None,
    window: Annotated[
        int,
        typer.Option(
            min=2,
            max=LONGEST_WINDOW,
            help="Tokens that --huggingface reads at a stretch, at most its positions.",
        ),
    ] = WINDOW,
    output_layer: Annotated[
        str | None,
        typer.Option(help="Name of the nn.Linear that makes the logits; found if absent."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a PyTorch model over data; keep what enters its output layer.

    Either --module, or --huggingface with --text, which downloads nothing.

    FUNCTION is yours: it loads the model (torch.load only with weights_only=True),
    and returns it with an iterable of batches. Each batch is the model's argument,
    a tuple of its arguments, or a dict of keyword arguments.

    A model whose logits are not W h + b is refused.

    Example: logitsieve capture --module my_model.py:load --out contexts/lm
    """
    model, batches = _source(module, huggingface, text, window)
    with bars("capture") as progress:
        summary = capture(
            model, batches, out, output_layer=output_layer, config=config, progress=progress
        )
    if as_json:
        print_json(summary)
        return
    print(f"{out}: {summary['rows']:,} contexts of {summary['rows_seen']:,}, D = {summary['dim']}")
    print(
        f"Next: logitsieve build --weight {out}/weight.npy --bias {out}/bias.npy "
        f"--contexts {out} --out models/NAME/1"
    )


def _source(
    module: str | None, huggingface: Path | None, text: Path | None, window: int
) -> tuple[nn.Module, Iterable[Any]]:
    if (module is None) == (huggingface is None):
        got = "neither" if module is None else "both"
        raise InvalidRequest("module", f"{got} of --module and --huggingface", "one of them")
    if module is not None:
        return _call(module)
    if text is None:
        raise InvalidRequest("text", "nothing", "a text file for --huggingface")
    assert huggingface is not None
    return open_folder(huggingface, text, window=window)


def _call(module: str) -> tuple[nn.Module, Iterable[Any]]:
    file, _, function = module.rpartition(":")
    if not Path(file).is_file() or not file.endswith(".py"):
        raise InvalidRequest("module", module, "FILE.py:FUNCTION with an existing file")
    spec = spec_from_file_location("logitsieve_capture_source", file)
    assert spec is not None
    assert spec.loader is not None
    source = module_from_spec(spec)
    spec.loader.exec_module(source)
    if not callable(load := getattr(source, function, None)):
        raise InvalidRequest("module", module, f"a function of {file} after the colon")
    match load():
        case (nn.Module() as model, batches) if isinstance(batches, Iterable):
            return model, batches
        case other:
            raise InvalidRequest(
                "module", f"{function}() returned {type(other).__name__}", "(nn.Module, batches)"
            )
