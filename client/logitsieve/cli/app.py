"""The subcommands, which are imported when called, and their exit codes."""

import logging
import sys
from importlib import import_module
from inspect import getdoc
from typing import Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from logitsieve.api.errors import InvalidRequest, LogitsieveError, ModelNotFound, shortened
from logitsieve.cli.options import with_options
from logitsieve.cli.output import shown
from logitsieve.utils.environment import require
from logitsieve.version import __version__

COULD_NOT, BAD_INPUT = 1, 2

MODULES: dict[str, tuple[str, ...]] = {
    "": (),
    "server": (
        *("numba", "prometheus_client", "grpc_health", "grpc_reflection"),
        *("starlette", "uvicorn", "uvloop"),
    ),
    "training": ("numba", "faiss", "torch", "threadpoolctl"),
    "llamacpp": (
        *("numba", "gguf", "jinja2", "xllamacpp"),
        *("prometheus_client", "starlette", "uvicorn", "uvloop"),
    ),
    "ray": ("numba", "prometheus_client", "ray", "fastapi"),
    "builder": ("numba", "threadpoolctl"),
}


class Entry(NamedTuple):
    panel: str
    summary: str
    extra: str
    from_file: bool = False  # it has --config and environment variables


COMMANDS: dict[str, Entry] = {
    "train": Entry("Train", "Train a language model, with a loss of your choice.", "training"),
    "capture": Entry("Build", "Run a model and keep its contexts.", "builder"),
    "build": Entry("Build", "Make an index of a softmax: screens (L2S), LSH, SVD.", "builder"),
    "tune": Entry("Build", "Measure an index at many settings of its knobs.", "builder"),
    "evaluate": Entry("Inspect", "Measure a head's precision and speed on contexts.", "builder"),
    "compare": Entry("Inspect", "Measure the divergence of a GGUF model from another.", "builder"),
    "inspect": Entry("Inspect", "Show the contents of an index.", "server"),
    "verify": Entry("Inspect", "Check every byte of an index.", "server"),
    "shard": Entry("Build", "Split an index by the rows of W into shards.", "server"),
    "prune": Entry("Build", "Remove old versions of indexes.", "server"),
    "serve": Entry("Serve", "Answer requests over gRPC.", "server", from_file=True),
    "ray": Entry("Serve", "Serve indexes in shards on a Ray cluster.", "ray"),
    "query": Entry("Decode", "Ask a server for the next tokens.", ""),
    "generate": Entry("Decode", "Continue a text or answer a chat by a GGUF model.", "llamacpp"),
    "detect": Entry("Decode", "Tell whether a text was drawn with a watermark's key.", "llamacpp"),
    "serve-gguf": Entry(
        "Serve", "Score and continue texts by a GGUF model, in OpenAI's interface.", "llamacpp"
    ),
    "admin": Entry("Serve", "Load, unload or name versions of a server.", ""),
}


class LazyCommand(TyperCommand):
    """The subcommand in cli/<name>.py, with _ for -."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.summary, rich_help_panel=entry.panel)
        self._entry = entry

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Import the command; --help works without the packages of its extra."""
        module = str(self.name).replace("-", "_")
        command = import_module(f"logitsieve.cli.{module}").command
        variables = f"LOGITSIEVE_{str(self.name).upper()}_" if self._entry.from_file else ""
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        text = (getdoc(command) or "").replace("Example: ", "\b\nExample: ")
        single.command(self.name, help=text)(with_options(command, variables))
        context = get_command(single).make_context(*args, **kwargs)
        if not context.resilient_parsing:  # True for shell completion, which runs no command
            require(self._entry.extra, *MODULES[self._entry.extra])
        return context


class CommandGroup(TyperGroup):
    """The group of all subcommands, which prints errors without a traceback."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: LazyCommand(name, entry) for name, entry in COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except (LogitsieveError, OSError) as error:  # typer handles BrokenPipeError
            print(f"error: {shortened(shown(str(error)))}", file=sys.stderr)
            bad = isinstance(error, (InvalidRequest, ModelNotFound))
            code = BAD_INPUT if bad else COULD_NOT
            if not kwargs.get("standalone_mode", True):
                return code
            sys.exit(code)


app = typer.Typer(
    cls=CommandGroup,
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="Minimum level of the log on stderr."),
    ] = "warning",
) -> None:
    """The output layer of a language or translation model, without computing every logit.

    Train a model, capture contexts from it, build an index from them, look at it, serve it.
    Each command has its own --help, with an example.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("logitsieve")
    logger.handlers[:] = [handler]
    logger.setLevel(log_level.upper())
