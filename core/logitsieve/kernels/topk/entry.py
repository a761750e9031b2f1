"""CPython's call of a top k in machine code: check, new arrays, kernel and answer, without Python.

Just after other work a call is as slow as its cold cache lines, and each Python function touches
hundreds. This one follows https://docs.python.org/3/c-api/structures.html#c.METH_FASTCALL and
https://numpy.org/doc/stable/reference/c-api/array.html; objects are int64 addresses here.
"""

import ctypes
import time
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from logitsieve.api.results import Answer, TopK, TopKReply
from logitsieve.kernels.compile import CFunction, Kernel, emits, inline, inline_once
from logitsieve.kernels.simd.pointers import int32_pointer, int64_pointer, uint8_pointer

Enter = Callable[[Any, Any], Any]
"""(hidden, k) -> a TopK, or a TopKReply; (status, TopK) if rows are left to do; None if the request
is not float32 [B, D], C-contiguous, and an int in 1 .. V: check and convert it in Python."""

(
    KERNEL, DESCRIPTOR, DIM, VOCABULARY, MOST_ROWS, PROVES, NEW_ARRAY, NDARRAY, FLOAT32, INT32,
    BOOL, INT, NONE, TOPK, TOPK_TYPE, REPLY, REPLY_TYPE, ANSWER, ANSWER_TYPE,
) = range(19)  # fmt: skip
FIELDS = 19  # ANSWER is 0 for a TopK, else the Answer to copy

# Bytes from an object's start. Of numpy's arrays: stable through all of version 2.
TYPE, TUPLE_SIZE, ITEMS = 8, 16, tuple.__basicsize__
DATA, RANK, SHAPE, DTYPE, FLAGS = 16, 24, 32, 56, 64
CONTIGUOUS = 1  # of FLAGS: in C's order
MAKES_ARRAYS = 94  # PyArray_NewFromDescr in numpy's table
CLOCK = getattr(time, "CLOCK_MONOTONIC", 1)  # of perf_counter_ns
ITEM = 8  # bytes

EXACT, SCANNED, FALLBACK, KNOBS, TOOK = map(
    Answer._fields.index, ("exact", "scanned", "fallback", "knobs", "compute_ns")
)


def _api(name: str, count: int, result: Any = types.int64) -> Any:
    return types.ExternalFunction(name, result(*[types.int64] * count))


_keep, _drop = _api("Py_IncRef", 1, types.void), _api("Py_DecRef", 1, types.void)
_number, _int = _api("PyLong_AsLongLong", 1), _api("PyLong_FromLongLong", 1)
_forget_error = _api("PyErr_Clear", 0, types.void)
_tuple, _allocate = _api("PyTuple_New", 1), _api("PyType_GenericAlloc", 2)
_copy_dict = _api("PyDict_Copy", 1)
_release, _acquire = _api("PyEval_SaveThread", 0), _api("PyEval_RestoreThread", 1, types.void)


@inline
def word(start, offset):
    return int64_pointer(start + offset)[0]


@emits(lambda: types.int64())
def _now(builder):
    number = ir.IntType(64)
    time_ = cgutils.alloca_once(builder, number, 2)
    kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), number.as_pointer()])
    read = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
    builder.call(read, [ir.IntType(32)(CLOCK), time_])
    seconds, rest = (builder.load(builder.gep(time_, [number(i)])) for i in range(2))
    return builder.add(builder.mul(seconds, number(10**9)), rest)


@emits(lambda make, kind, dtype, rank, rows, columns: types.int64(*[types.int64] * 6))
def _new_array(builder, make, kind, dtype, rank, rows, columns):
    number, small = ir.IntType(64), ir.IntType(32)
    shape = cgutils.alloca_once(builder, number, 2)
    for place, size in enumerate((rows, columns)):
        builder.store(size, builder.gep(shape, [number(place)]))
    given = [kind, dtype, builder.trunc(rank, small), builder.ptrtoint(shape, number)]
    given += [number(0), number(0), small(0), number(0)]
    called = ir.FunctionType(number, [each.type for each in given]).as_pointer()
    return builder.call(builder.inttoptr(make, called), given)


@intrinsic
def _call_kernel(typing, kernel, address, hidden, dim, ids, logits, k, scanned, start, stop):
    floats, whole = types.Array(types.float32, 2, "C"), types.Array(types.int32, 2, "C")
    counts = types.Array(types.int32, 1, "C")
    kinds = [types.int64, floats, whole, floats, counts, types.int64, types.int64]

    def codegen(context, builder, signature, values):
        kernel, address, hidden, dim, ids, logits, k, scanned, start, stop = values

        def array(kind, data, *shape):
            made = context.make_array(kind)(context, builder)
            itemsize, count = ir.IntType(64)(4), shape[0]
            strides = [itemsize]
            for size in shape[:0:-1]:
                strides, count = [builder.mul(strides[0], size), *strides], builder.mul(count, size)
            data = builder.inttoptr(data, made.data.type)
            meminfo = cgutils.get_null_value(made.meminfo.type)
            given = {"data": data, "shape": shape, "strides": strides, "itemsize": itemsize}
            context.populate_array(made, meminfo=meminfo, **given)
            return made._getvalue()

        given = [
            address, array(floats, hidden, stop, dim), array(whole, ids, stop, k),
            array(floats, logits, stop, k), array(counts, scanned, stop), start, stop,
        ]  # fmt: skip
        convention = context.call_conv
        called = convention.get_function_type(types.int64, kinds).as_pointer()
        kernel = builder.inttoptr(kernel, called)
        _, status = convention.call_function(builder, kernel, types.int64, kinds, given)
        return status

    return types.int64(*[types.int64] * 10), codegen


@inline
def _array_of(state, dtype, rank, rows, columns):
    _keep(dtype)
    return _new_array(state[NEW_ARRAY], state[NDARRAY], dtype, rank, rows, columns)


@inline
def _filled(array, rows, value):
    values = uint8_pointer(word(array, DATA))
    for row in range(rows):
        values[row] = value


@inline
def _like(kind, example):
    made = _allocate(kind, word(example, TUPLE_SIZE))
    if made != 0:
        for offset in range(TUPLE_SIZE + ITEM, ITEMS, ITEM):
            int64_pointer(made + offset)[0] = word(example, offset)
    return made


@inline
def _items(made):
    return int64_pointer(made + ITEMS)


@inline_once
def _admitted(state, hidden, k):
    """Return K, or 0 if Python has to look at the request."""
    floats = word(hidden, TYPE) == state[NDARRAY] and word(hidden, DTYPE) == state[FLOAT32]
    if not floats or int32_pointer(hidden + RANK)[0] != 2 or word(k, TYPE) != state[INT]:
        return 0
    rows, dim = word(word(hidden, SHAPE), 0), word(word(hidden, SHAPE), ITEM)
    flags, count = int32_pointer(hidden + FLAGS)[0], _number(k)
    if count == -1:
        _forget_error()  # of a number beyond int64
    fits = 1 <= count <= state[VOCABULARY] and 1 <= rows <= state[MOST_ROWS] and dim == state[DIM]
    return count if fits and flags & CONTIGUOUS else 0


@inline_once
def _reply(state, top, began):
    """Return a TopKReply with the items of a TopK, or 0."""
    example, found = state[ANSWER], _items(top)
    answer, reply = _like(state[ANSWER_TYPE], example), _like(state[REPLY_TYPE], state[REPLY])
    knobs = _copy_dict(word(example, ITEMS + ITEM * KNOBS))
    if answer == 0 or reply == 0 or knobs == 0:
        return 0
    items = _items(answer)
    for i in range(word(example, TUPLE_SIZE)):
        items[i] = word(example, ITEMS + ITEM * i)
    items[EXACT], items[SCANNED], items[FALLBACK] = found[2], found[3], found[4]
    items[KNOBS] = items[TOOK] = state[NONE]
    for i in range(word(example, TUPLE_SIZE)):
        _keep(items[i])
    took = _int(_now() - began)
    if took == 0:
        return 0
    _drop(items[KNOBS])
    _drop(items[TOOK])
    items[KNOBS], items[TOOK] = knobs, took
    own = _items(reply)
    own[0], own[1], own[2] = found[0], found[1], answer
    _keep(own[0])
    _keep(own[1])
    _drop(top)
    return reply


def _enter(me, arguments, count):
    """Answer a call with `count` arguments; 0 with CPython's MemoryError set."""
    began, state = _now(), int64_pointer(word(word(me, ITEMS), DATA))
    k = _admitted(state, word(arguments, 0), word(arguments, ITEM)) if count == 2 else 0
    if k == 0:
        _keep(state[NONE])
        return state[NONE]
    hidden = word(arguments, 0)
    rows, top = word(word(hidden, SHAPE), 0), _like(state[TOPK_TYPE], state[TOPK])
    if top == 0:
        return 0
    found = _items(top)
    found[0], found[1] = (
        _array_of(state, state[INT32], 2, rows, k), _array_of(state, state[FLOAT32], 2, rows, k),
    )  # fmt: skip
    found[2] = _array_of(state, state[BOOL], 1, rows, 0)
    found[3] = _array_of(state, state[INT32], 1, rows, 0)
    found[4] = _array_of(state, state[BOOL], 1, rows, 0)
    for i in range(5):
        if found[i] == 0:
            _drop(top)
            return 0
    _filled(found[2], rows, state[PROVES])
    _filled(found[4], rows, 0)
    thread = _release()
    status = _call_kernel(
        state[KERNEL], state[DESCRIPTOR], word(hidden, DATA), state[DIM], word(found[0], DATA),
        word(found[1], DATA), k, word(found[3], DATA), 0, rows,
    )  # fmt: skip
    _acquire(thread)
    if status == 0:
        return top if state[ANSWER] == 0 else _reply(state, top, began)
    both, number = _tuple(2), _int(status)
    if both != 0 and number != 0:
        _items(both)[0], _items(both)[1] = number, top
    return both


class _Method(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


FAST_CALL = 0x80
ENTER = CFunction(_enter, types.int64(types.int64, types.int64, types.int64))


@cache
def _method() -> _Method:
    return _Method(b"topk", ENTER.address, FAST_CALL, None)


@cache
def _array_maker() -> int:
    unpack = ctypes.pythonapi.PyCapsule_GetPointer
    unpack.restype, unpack.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = unpack(np._core.multiarray._ARRAY_API, None)  # type: ignore[attr-defined]
    return int(ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[MAKES_ARRAYS])


TOP, REPLIED = TopK(*[None] * 5), TopKReply(*[None] * 3)  # type: ignore[arg-type]


@cache
def _reads_objects_right() -> bool:
    """True if objects of CPython and numpy begin as assumed here: not without a global lock."""
    array, number = np.zeros((2, 3), np.float32), ctypes.c_int64.from_address
    start, pair = id(array), (array, 1)
    if object.__basicsize__ != 2 * ITEM or number(start + TYPE).value != id(np.ndarray):
        return False
    pairs = (
        (number(start + DATA).value, array.ctypes.data),
        (number(start + DTYPE).value, id(array.dtype)),
        (number(number(start + SHAPE).value + ITEM).value, array.shape[1]),
        (ctypes.c_int32.from_address(start + RANK).value, array.ndim),
        (ctypes.c_int32.from_address(start + FLAGS).value & CONTIGUOUS, CONTIGUOUS),
        (number(id(pair) + TUPLE_SIZE).value, len(pair)),
        (number(id(pair) + ITEMS).value, id(array)),
    )
    return all(found == known for found, known in pairs)


def never(hidden: Any, k: Any) -> None:
    """Leave every request to Python."""


def topk_entry(
    kernel: Kernel, descriptor: np.ndarray, shape: tuple[int, int], most_rows: int, proves: bool,
    keep: Any = None, answer: Answer | None = None,
) -> Enter:  # fmt: skip
    """Return the entry to a kernel of top k for W of that shape [V, D] and up to `most_rows` rows.

    It owns `keep`. With `answer` it returns replies like that one, with their own fields by row.
    """
    if most_rows == 0 or not _reads_objects_right():
        return never
    state, (vocab_size, dim) = np.zeros(FIELDS, np.int64), shape
    objects = {
        NDARRAY: np.ndarray, FLOAT32: np.dtype(np.float32), INT32: np.dtype(np.int32),
        BOOL: np.dtype(np.bool_), INT: int, NONE: None, TOPK: TOP, TOPK_TYPE: TopK,
        REPLY: REPLIED, REPLY_TYPE: TopKReply, ANSWER_TYPE: Answer,
    }  # fmt: skip
    if answer is not None:
        objects[ANSWER] = answer
    for place, value in objects.items():
        state[place] = id(value)
    state[KERNEL], state[DESCRIPTOR] = kernel.address, descriptor.ctypes.data
    state[DIM], state[VOCABULARY], state[MOST_ROWS] = dim, vocab_size, most_rows
    state[NEW_ARRAY], state[PROVES] = _array_maker(), proves
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] + [ctypes.py_object] * 2
    owned = state, descriptor, keep, answer
    return cast(Enter, make(ctypes.addressof(_method()), owned, None))
