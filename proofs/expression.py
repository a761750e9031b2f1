"""Expressions of the kernels for Gappa: the kernels' own Python code, run on symbols.

Arithmetic on symbols writes text, with each operation rounded to the format that Numba computes it
in. Comparisons are true, so that code takes the proven path.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from proofs.theorem import number


def _operator(sign: str, swapped: bool = False) -> Any:
    def operate(one: Symbol, other: Any) -> Symbol:
        return _rounded(sign, *((other, one) if swapped else (one, other)))

    return operate


class Symbol:
    """A value of a kernel, of `kind` "f" (float32) or "d" (float64); `size` is its magnitude."""

    def __init__(self, text: str, kind: str, size: str = "") -> None:
        self.text, self.kind, self.size = text, kind, size or f"|{text}|"

    def __str__(self) -> str:
        return self.text

    def __neg__(self) -> Symbol:
        return Symbol(f"(-({self}))", self.kind)

    def __abs__(self) -> Symbol:
        return Symbol(self.size, self.kind)

    def __gt__(self, other: Any) -> bool:
        return True

    __lt__ = __gt__
    __add__, __radd__ = _operator("+"), _operator("+", swapped=True)
    __sub__ = _operator("-")
    __mul__, __rmul__ = _operator("*"), _operator("*", swapped=True)
    __truediv__, __rtruediv__ = _operator("/"), _operator("/", swapped=True)


def text_of(value: Any) -> str:
    if isinstance(value, Symbol):
        return value.text
    exact = number(Fraction(float(value)))
    return f"({exact})" if exact.startswith("-") else exact


def _kind(*values: Any) -> str:
    kinds = (
        v.kind if isinstance(v, Symbol) else "fd"[not isinstance(v, np.float32)] for v in values
    )
    return max(kinds, key="fd".index)


def _rounded(operator: str, one: Any, other: Any) -> Symbol:
    if operator == "*" and other == 1:
        return cast(Symbol, one)
    kind, text = _kind(one, other), f"{text_of(one)} {operator} {text_of(other)}"
    exact = operator == "*" and 2 in (one, other)
    return Symbol(f"({text})" if exact else f"{kind}({text})", kind)


def _float32(value: Any) -> Any:
    return Symbol(f"f({value})", "f") if isinstance(value, Symbol) else np.float32(value)


def _multiply_add(fused: bool, x: Any, y: Any, z: Any) -> Any:
    """Return x y + z, rounded once if `fused`, or if x or y is 1 or z is 0; else twice."""
    if not any(isinstance(value, Symbol) for value in (x, y, z)):
        return x * y + z
    kind = _kind(x, y, z)
    if not isinstance(y, Symbol) and y == 1:
        return z + x if isinstance(z, Symbol) or z != 0 else x
    if not isinstance(z, Symbol) and z == 0:
        return _rounded("*", x, y)
    product = f"{text_of(x)} * {text_of(y)}" if fused else _rounded("*", x, y)
    return Symbol(f"{kind}({text_of(z)} + {product})", kind)


def _lanes(fused: bool) -> dict[str, Any]:
    return {
        "np": SimpleNamespace(float32=_float32, inf=np.inf, int64=int),
        "splat32": lambda x: x,
        "zeros32": lambda: np.float32(0),
        "zeros64": lambda: 0.0,
        "multiply_add": lambda x, y, z: _multiply_add(fused, x, y, z),
        "polynomial": lambda series, x: reduce(lambda p, c: _multiply_add(fused, p, x, c), series),
        "magnitude": abs,
        "widen": lambda x: x,
        "rounded": lambda x: Symbol(f"int<ne>({x})", x.kind),
        "larger": lambda x, least: x,
        "smaller": lambda x, most: x,
        "load": lambda values, place: values[place],
        "exp_lanes": lambda x: x,
        "exp64_lanes": lambda x: x,
        "times_power_of_two": lambda p, n: p,
        "shifted_exponents": lambda p, *_: p,
    }


class Traced(NamedTuple):
    returned: Any
    locals: Mapping[str, str]


def traced(
    function: Any, *args: Any, fused: bool = True, named: tuple[str, ...] = (), **others: Any
) -> Traced:
    """Run a kernel's function on symbols; `others` replace globals, such as constants.

    After its last assignment, each local variable in `named` is a symbol of its own name.
    """
    texts: dict[str, str] = {}

    def name(local: str, value: Symbol) -> Symbol:
        texts[local] = value.text
        return Symbol(local, value.kind)

    definition = _definition(function)
    body = definition.body
    for local in named:
        last = max(i for i, line in enumerate(body) if ast.unparse(line).startswith(f"{local} = "))
        body.insert(last + 1, ast.parse(f"{local} = _name({local!r}, {local})").body[0])
    names = {**_globals(function, fused), **others, "_name": name}
    tree = ast.fix_missing_locations(ast.Module([definition], []))
    exec(compile(tree, "<kernel>", "exec"), names)
    return Traced(names[function.__name__](*args), texts)


def assigned(function: Any, target: str, fused: bool = True, **names: Any) -> Symbol:
    """Return the last expression assigned to `target` in a kernel, on the symbols `names`."""
    values = [each for each in _assignments(_definition(function)) if each[0] == target]
    computed = [each for each in values if not isinstance(each[1], ast.UnaryOp)]
    _, value, more = max(computed, key=lambda each: each[1].lineno)
    code = compile(ast.Expression(value), "<kernel>", "eval")
    result: Symbol = eval(code, {**_globals(function, fused), **names})
    return names[target] + result if more else result


def _globals(function: Any, fused: bool) -> dict[str, Any]:
    """Return the globals of a kernel's function, where other kernels are traced, too."""

    def called(other: Any) -> Callable[..., Any]:
        return lambda *args: traced(other, *args, fused=fused).returned

    own = function.py_func.__globals__
    return {
        **{
            name: called(value) if hasattr(value, "py_func") else value
            for name, value in own.items()
        },
        **_lanes(fused),
    }


def _definition(function: Any) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function.py_func)))
    [definition] = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    definition.decorator_list = []
    return definition


def _assignments(tree: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target), node.value, True
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                yield from ((ast.unparse(one), value, False) for one, value in pairs)
