from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import ENGINE, RAY, AsJson, EngineName, executor_at, flag, idle_cores
from logitsieve.cli.output import bars, print_json
from logitsieve.index_builder.config import LONGEST_WINDOW, WINDOW, CaptureConfig
from logitsieve.utils.environment import require

if TYPE_CHECKING:
    from torch import nn


BLOCK_ROWS = 4096
OF_PRIMER = (
    "They are of the primer, a short text of many kinds: enough for full and sketch; a screen"
    " needs text of its use (--text)."
)


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    out: Path = flag(MISSING, "The folder to write, which must not exist.")
    module: str | None = flag(
        None,
        "A function without arguments that returns (model, batches). "
        "The file's code is run, so use only code that you trust.",
        metavar="FILE.py:FUNCTION",
    )
    huggingface: Path | None = flag(
        None, "Folder with a Hugging Face causal language model, instead of --module."
    )
    model: Path | None = flag(
        None, "A model as GGUF, run by llama.cpp, instead of --module.", "--model", "-m"
    )
    text: Path | None = flag(
        None,
        "Text for --huggingface or --model to read: UTF-8, plain or gzipped. Without it --model"
        " reads a short text of many kinds, which suffices for the heads full and sketch, but not"
        " for a screen.",
    )
    chat: bool = flag(
        False,
        "Take each line of --text for a user's message to the model of --model, and capture the"
        " contexts of its answers.",
        "--chat",
    )
    window: int = flag(
        WINDOW,
        "Tokens that --huggingface or --model reads at once, at most its positions.",
        min=2,
        max=LONGEST_WINDOW,
    )
    threads: int | None = flag(
        None,
        "CPU threads of llama.cpp; by default one for each idle core, with --ray a single one.",
        min=1,
        max=1024,
    )
    engine: EngineName = flag("auto", ENGINE)
    ray: str | None = flag(None, RAY, metavar="ADDRESS")
    output_layer: str | None = flag(
        None, "Name of the nn.Linear that makes the logits, which is otherwise searched for."
    )

    def check(self) -> None:
        sources = {"module": self.module, "huggingface": self.huggingface, "model": self.model}
        given = [name for name, source in sources.items() if source is not None]
        if len(given) != 1:
            names = ", ".join(f"--{name}" for name in sources)
            raise InvalidRequest("module", " and ".join(given) or "nothing", f"one of {names}")
        if self.chat and self.model is None:
            raise InvalidRequest("chat", f"--{given[0]}", "--model")
        if self.huggingface is not None:
            if self.text is None:
                raise InvalidRequest("text", "nothing", "a text file for --huggingface")
            if not (self.huggingface / "config.json").is_file():
                raise InvalidRequest("huggingface", self.huggingface, "a folder with config.json")
        if self.module is not None:
            file, _, _ = self.module.rpartition(":")
            if not Path(file).is_file() or not file.endswith(".py"):
                allowed = "FILE.py:FUNCTION with an existing file"
                raise InvalidRequest("module", self.module, allowed)
        if self.out.exists():
            raise InvalidRequest("out", self.out, "a path that does not exist")

    def run(self, config: CaptureConfig) -> dict[str, Any]:
        with executor_at(self.ray) as executor, bars("capture") as progress:
            more: dict[str, Any] = {"config": config, "progress": progress, "executor": executor}
            if self.model is not None:
                return self._run_gguf(self.model, more)
            model, batches, load = self._source()
            from logitsieve.index_builder.capture import capture

            layer = self.output_layer
            return capture(model, batches, self.out, output_layer=layer, load=load, **more)

    def _run_gguf(self, gguf: Path, more: Mapping[str, Any]) -> dict[str, Any]:
        from logitsieve.index_builder.capture.llamacpp import capture_gguf

        threads = self.threads or (idle_cores() if self.ray is None else 1)
        read: dict[str, Any] = {"window": self.window, "threads": threads, "chat": self.chat}
        read["engine"] = self.engine
        return capture_gguf(gguf, self.text, self.out, **read, **more)

    def _source(self) -> tuple[nn.Module, Iterable[Any], Callable[[], nn.Module]]:
        if self.module is not None:
            return *_call(self.module), partial(_model_of, str(Path(self.module).absolute()))
        from logitsieve.index_builder.capture.huggingface import load_model, open_folder

        assert self.huggingface is not None
        assert self.text is not None
        model, batches = open_folder(self.huggingface, self.text, window=self.window)
        return model, batches, partial(load_model, self.huggingface.absolute())


def command(options: CaptureOptions, config: CaptureConfig, as_json: AsJson = False) -> None:
    """Run a model over data, and keep the inputs of its output layer.

    The model is from --module, from --huggingface with --text, or from --model with or without
    --text. Nothing is downloaded.

    FUNCTION returns the model (torch.load only with weights_only=True) and an iterable of batches:
    the model's argument, a tuple of arguments, or a dict of keyword arguments. A model is refused
    unless its logits are W h + b.

    Example: logitsieve capture --module my_model.py:load --out contexts/lm
    """
    options.check()
    out = options.out
    summary = options.run(config)
    if as_json:
        print_json(summary)
        return
    print(f"{out}: {summary['rows']:,} contexts of {summary['rows_seen']:,}, D = {summary['dim']}")
    weight = f"{out}/weight.npy --bias {out}/bias.npy" if options.model is None else options.model
    heads = "" if options.model or not _is_bfloat16(out / "weight.npy") else " --dtype bfloat16"
    if summary.get("primer"):
        print(OF_PRIMER)
        heads = " --heads full,sketch"
    print(f"Next: logitsieve build --weight {weight} --contexts {out}{heads} --out models/NAME/1")


def _is_bfloat16(weight: Path) -> bool:
    """Return True if all numbers are bfloat16's, so that an index of that type is half as large."""
    array = np.load(weight, mmap_mode="r")
    blocks = (array[start : start + BLOCK_ROWS] for start in range(0, len(array), BLOCK_ROWS))
    return array.dtype == np.float32 and all(
        not (np.ascontiguousarray(block).view(np.uint32) & 0xFFFF).any() for block in blocks
    )


def _model_of(module: str) -> nn.Module:
    return _call(module)[0]


def _call(module: str) -> tuple[nn.Module, Iterable[Any]]:
    require("training", "torch")
    from torch import nn

    file, _, function = module.rpartition(":")
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
