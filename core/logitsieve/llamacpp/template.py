"""Jinja with Hugging Face's settings for chat templates, and limits on time and memory."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from time import thread_time
from types import FrameType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_eval_context

RENDER_S = 2.0
LARGEST = 1 << 24  # characters, items or bits of a value
FAILURES = (  # the template is wrong, refuses its messages, or exceeds the limits
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
DIRECTIVE = re.compile(r"%(?:\([^)]*\))?([-#0 +.*\d]*)")
WIDE_FIELD = re.compile(r":[^{}]*(?:\d{8}|\{)")
PADDING = ("center", "indent")  # filters


def render(template: str, **given: Any) -> str:
    """Render a template within RENDER_S of this thread's time, or raise one of FAILURES."""
    compiled = _compiled(template)
    with _time_limit():
        return compiled.render(**given)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters |= {"tojson": _to_json, "format": _format}
    environment.filters |= {"replace": _replaced, "join": _join}
    environment.filters |= {name: _padded(FILTERS[name]) for name in PADDING}
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda format: datetime.now().strftime(format),
        "dict": DictMaker(),
        "namespace": PlainNamespace,
    }
    return environment.from_string(template)


class Generation(Extension):
    """The tag `generation`, which marks answers for training; we print its content."""

    tags = {"generation"}  # noqa: RUF012  Jinja's declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Callable[[], str]) -> str:
        return caller()


class DictMaker:
    """Replaces `dict`, which would give access to Python's internals."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class PlainNamespace(Namespace):
    """Replaces `namespace`, and refuses names of Python's internals."""

    def __init__(*args: Any, **values: Any) -> None:  # a template may have a value named "self"
        self, *given = args
        values = dict(*given, **values)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class _Code(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self.write("environment.concat(map(str, (")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write(")))")


def _joined(texts: Iterable[str]) -> str:
    kept, size = [], 0
    for text in texts:
        size += len(text)
        _refuse_huge(size)
        kept.append(text)
    return "".join(kept)


class Sandbox(ImmutableSandboxedEnvironment):
    """Raises ValueError before an operation would make a value larger than LARGEST."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _Code
    concat = staticmethod(_joined)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _refuse_huge(_result_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            _refuse_huge(*(one for one in args if isinstance(one, int)))
            if __obj.__name__ == "replace":
                _refuse_huge(_replaced_size(text, *args[:2]))
            elif __obj.__name__ == "join":
                args = ([*args[0]],)
                _refuse_huge(_joined_size(text, *args))
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and WIDE_FIELD.search(value.__self__):
            raise ValueError("a field of a format is too wide")
        return wrapped


def _result_size(operator: str, left: Any, right: Any) -> int:
    if operator == "%":
        return _printed_width(left, right) if isinstance(left, str) else 0
    if operator == "**":
        return _size(left) * abs(right) if isinstance(right, int) else 0
    both = isinstance(left, int), isinstance(right, int)
    if operator == "+" or all(both):
        return _size(left) + _size(right)
    return left * _size(right) if both[0] else _size(left) * right if both[1] else 0


def _size(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, str | list | tuple) else 0


def _printed_width(text: str, values: Any) -> int:
    flags = " ".join(DIRECTIVE.findall(text))
    told = values if isinstance(values, tuple) and "*" in flags else ()
    return sum(map(int, re.findall(r"\d+", flags))) + sum(
        abs(value) for value in told if isinstance(value, int)
    )


def _replaced_size(text: Any, old: Any, new: Any) -> int:
    return str(text).count(str(old)) * len(str(new))


def _joined_size(between: Any, items: list[Any]) -> int:
    return len(items) * len(str(between)) + sum(map(_size, items))


@pass_eval_context
def _replaced(context: Any, text: Any, old: Any, new: Any, count: int | None = None) -> str:
    _refuse_huge(_replaced_size(text, old, new))
    return str(FILTERS["replace"](context, text, old, new, count))


@pass_eval_context
def _join(context: Any, items: Any, d: Any = "", attribute: Any = None) -> str:
    listed = [*items]
    _refuse_huge(_joined_size(d, listed))
    return str(FILTERS["join"](context, listed, d, attribute))


def _format(text: Any, *values: Any, **named: Any) -> str:
    _refuse_huge(_printed_width(str(text), values))
    return str(FILTERS["format"](text, *values, **named))


def _padded(function: Callable[..., str]) -> Callable[..., str]:
    def padded(text: Any, *args: Any, **named: Any) -> str:
        _refuse_huge(*(one for one in (*args, *named.values()) if isinstance(one, int)))
        return function(text, *args, **named)

    return padded


def _to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int):
        _refuse_huge(indent)
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse_huge(*sizes: int) -> None:
    if any(abs(size) > LARGEST for size in sizes):
        raise ValueError(f"a value is larger than {LARGEST}")


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace holds no {name!r:.40}")


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(message)


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise ValueError in Python code that still runs after RENDER_S of this thread's time."""
    before, until = sys.gettrace(), thread_time() + RENDER_S

    def trace(frame: FrameType, *_: object) -> Any:
        if thread_time() > until:
            raise ValueError(f"it takes more than {RENDER_S:g} s")
        return trace if frame.f_code.co_filename != __file__ else None

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
