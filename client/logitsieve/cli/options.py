"""Make command-line options from the fields of frozen dataclasses."""

import inspect
import math
import os
import sys
import tomllib
import typing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, field, fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.environment import reason_of, require

if TYPE_CHECKING:
    from logitsieve.llamacpp import LlamaContext

LONGEST_TEXT = 1 << 26  # characters
KNOB = "Knob of the head as NAME=VALUE; repeatable."
CORES = min(os.cpu_count() or 1, 1024)
EngineName = Literal["llamacpp", "ik", "auto"]
ENGINE = (
    "Engine of a GGUF model: llamacpp, ik (ik_llama.cpp), or auto, which is ik if it is installed"
    " and runs the file."
)
RAY = "Use a Ray cluster: auto, HOST:PORT, or local for a new one on this machine."


def index_folder(path: Path | None) -> Path | None:
    if path is None:
        return None
    allowed = "a folder <name>/<version>, version 1, 2, ..."
    if not path.is_dir():
        got = f"{path}, which is no folder" if path.exists() else f"{path}, which does not exist"
        raise InvalidRequest("index", got, allowed)
    if not any(each.name.isdecimal() for each in (path, path.resolve())):
        versions = sorted(int(each.name) for each in path.iterdir() if each.name.isdecimal())
        held = f"; it holds {', '.join(map(str, versions))}" if versions else ""
        raise InvalidRequest("index", f"{path}, which is no version", allowed + held)
    return path


IndexFolder = Annotated[
    Path, typer.Argument(help="The index: a folder <name>/<version>.", callback=index_folder)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

FEW = 10  # an error names all options if they are fewer
# Types that a file may have for a field of another type.
IN_TOML: dict[type, tuple[type, ...]] = {float: (float, int), Path: (str,)}


def flag(default: Any, help: str, *names: str, **more: Any) -> Any:
    return field(default=default, metadata={"option": typer.Option(*names, help=help, **more)})


def with_options(command: Callable[..., None], variables: str = "") -> Callable[..., None]:
    """Return the command with an option for each field of its dataclass parameters.

    A field's metadata is from `flag` or `option`. Fields of tuple[X, ...] become repeatable, and a
    parameter's default overrides the fields'. `variables`, a prefix of environment variables, adds
    them and --config, a TOML file. The command line has precedence, then variables.
    """
    declared = inspect.signature(command, eval_str=True).parameters
    annotations = {name: parameter.annotation for name, parameter in declared.items()}
    bundles: dict[str, Any] = {n: kind for n, kind in annotations.items() if is_dataclass(kind)}
    parameters = [CONTEXT, _file_parameter(variables)] if variables else []
    for name, p in declared.items():
        own = [p.replace(kind=KEYWORD)]
        parameters += _parameters(bundles[name], p.default, variables) if name in bundles else own

    @wraps(command)
    def wrapped(**values: Any) -> None:
        context, file = values.pop("context", None), values.pop("config", None)
        made = {}
        for name, bundle in bundles.items():
            given = {field.name: values.pop(field.name) for field in fields(bundle)}
            chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            if file is not None:
                options = read_options(file, bundle)
                chosen |= {k: v for k, v in options.items() if not is_typed(k, context)}
            made[name] = bundle(**chosen)
        command(**values, **made)

    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


KEYWORD = inspect.Parameter.KEYWORD_ONLY
CONTEXT = inspect.Parameter("context", KEYWORD, annotation=typer.Context)


def _file_parameter(variables: str) -> inspect.Parameter:
    text = f"TOML file of these options; the command line wins, then {variables}<OPTION>."
    option = typer.Option(help=text, envvar=f"{variables}CONFIG", show_envvar=False)
    annotation = Annotated[Path | None, option]
    return inspect.Parameter("config", KEYWORD, default=None, annotation=annotation)


def read_options(file: Path, config: type[Any], flag: str = "config") -> dict[str, Any]:
    try:
        options = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            flag, f"{file}: {reason_of(error)}", "a TOML file of options"
        ) from error
    hints = typing.get_type_hints(config)
    for key in options:
        if key not in hints:
            near = hints if len(hints) < FEW else get_close_matches(key, hints) or hints
            raise InvalidRequest(key, f"an option that is unknown, in {file}", ", ".join(near))
    return {key: _of_type(key, value, hints[key]) for key, value in options.items()}


def is_typed(option: str, context: typer.Context) -> bool:
    """Return True if an option is from the command line or the environment."""
    source = context.get_parameter_source(option)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def _of_type(key: str, value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise InvalidRequest(key, repr(value), "list")
        return tuple(_of_type(key, one, typing.get_args(hint)[0]) for one in value)
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type)] or [str]
    target = next(kind for kind in kinds if kind is not NoneType)
    accepted = IN_TOML.get(target, (target,))
    if type(value) not in accepted:
        allowed = " or ".join(kind.__name__ for kind in accepted)
        raise InvalidRequest(key, repr(value), allowed)
    return target(value)


def _parameters(bundle: type[Any], defaults: Any, variables: str) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(bundle)
    for of in fields(bundle):
        hint, default, facts = hints[of.name], getattr(defaults, of.name, of.default), of.metadata
        if typing.get_origin(hint) is tuple:
            hint = list[typing.get_args(hint)[0]]  # type: ignore[misc]
        high = facts.get("high", math.inf)
        option = facts.get("option") or typer.Option(
            help=facts["help"],
            min=facts.get("low"),
            max=None if high == math.inf else high,
            envvar=f"{variables}{of.name.upper()}" if variables else None,
            show_envvar=False,
        )
        yield inspect.Parameter(
            of.name,
            KEYWORD,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=Annotated[hint, option],
        )


def numbers(field: str, pairs: Sequence[str], like: str = "name=number") -> dict[str, float]:
    """Read numbers such as ["probes=2", "p1=0.99,p5=0.9"]; or InvalidRequest."""
    values: dict[str, float] = {}
    for pair in ",".join(pairs).split(",") if pairs else []:
        name, _, value = (part.strip() for part in pair.partition("="))
        try:
            values[name] = float(value)
        except ValueError as error:
            raise InvalidRequest(field, repr(pair), like) from error
        if not name:
            raise InvalidRequest(field, repr(pair), like)
    return values


def read_words(path: Path) -> list[str]:
    return read_text("vocab_file", path, "a UTF-8 text file").removesuffix("\n").split("\n")


def read_text(flag: str, path: Path, allowed: str) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            return read_all(flag, file)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(flag, f"{path} ({reason_of(error)})", allowed) from error


def read_all(flag: str, file: IO[str]) -> str:
    """Return the text of a file; InvalidRequest if it has too many characters, or never ends."""
    text = file.read(LONGEST_TEXT + 1)
    if len(text) > LONGEST_TEXT:
        got = f"{file.name}, more than {LONGEST_TEXT:,} characters"
        raise InvalidRequest(flag, got, "at most so many")
    return text


def llama_threads(users: str = "llama.cpp and the index") -> Any:
    text = f"CPU threads of {users}; by default one for each idle core."
    return flag(None, text, "--threads", "-t", min=1, max=1024)


def say_engine(context: "LlamaContext", asked: str) -> None:
    """Tell which engine `auto` chose, unless it is llama.cpp."""
    if asked == "auto" and context.host.engine == "ik":
        print(f"{context.host.name} runs the model.", file=sys.stderr)


def idle_cores() -> int:
    """Count the idle cores, at least 1; all cores without Linux's /proc.

    A llama.cpp thread that shares its core slows all others, which wait for it in busy loops.
    """
    try:
        runnable = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        return CORES
    return max(1, CORES - max(0, runnable - 1))  # without this process


def executor_at(address: str | None) -> AbstractContextManager[Executor | None]:
    """Return an executor on the Ray cluster at `address`, or None without an address."""
    if address is None:
        return nullcontext()
    require("ray", "ray")
    from logitsieve.ray.building import connected

    return connected(address)
