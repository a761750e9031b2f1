"""Bytes as decisions: what a fuzzer changes in its input changes one field of a message.

Nothing is validated here. Numbers, names and tensors are mostly such as a server could take, or
every input would end at the first check.
"""

import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

WORDS = (
    *("", "demo", "demo@1", "demo:canary", "demo@2", "demo@3", "other", "1", "2", "9", "stable"),
    *("canary", "full", "screen", "sketch", "svd", "AUTO", "probes", "exact", "hidden_states", "k"),
    *("samples", "seeds", "ids", "log_z", "FP32", "INT32", "UINT64", "method", "sample", "timeout"),
    *("head", "knobs.probes", "min_precision", "normalizer", "../demo", "\u2603", "x" * 70),
)
WHOLE = (0, 1, 2, 3, 4, 5, 24, 60, 64, 128, 129, 255, 256, 257, 300, 1 << 31, (1 << 32) - 1)
REAL = (0.0, -0.0, 1.0, 0.5, 1e-9, 2.0, 11.0, -1.0, 1e39, 1e300, float("inf"), float("nan"))
SIZES = {0: 4, 1: 4, 2: 2, 3: 2, 4: 4, 5: 8, 6: 1}  # bytes of a number, by DType's code
DEEPEST = 5
MANY = 4

Field = FieldDescriptor
UNSIGNED = {Field.CPPTYPE_UINT32: 32, Field.CPPTYPE_UINT64: 64}
SIGNED = {Field.CPPTYPE_INT32: 32, Field.CPPTYPE_INT64: 64, Field.CPPTYPE_ENUM: 8}


class Feed:
    """Takes values off the front of some bytes; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken.ljust(count, b"\0")

    def rest(self) -> bytes:
        return self._data[self._at :]

    def word(self) -> str:
        """A name that means something, or a few characters."""
        chosen = self.byte()
        if chosen < 2 * len(WORDS):
            return WORDS[chosen % len(WORDS)]
        return self.take(chosen % 8).decode("latin-1")

    def whole(self, bits: int, signed: bool) -> int:
        """An integer of so many bits: often a small one or a limit."""
        chosen = self.byte()
        if chosen < 4 * len(WHOLE):
            value = WHOLE[chosen % len(WHOLE)]
        else:
            value = int.from_bytes(self.take(bits // 8), "little")
        value %= 1 << bits
        return value - (1 << bits) if signed and value >= 1 << (bits - 1) else value

    def real(self, width: int) -> float:
        """A float of 4 or 8 bytes."""
        chosen = self.byte()
        if chosen < 8 * len(REAL):
            value = REAL[chosen % len(REAL)]
        else:
            value = struct.unpack("<d", self.take(8))[0]
        if width == 4:  # what is beyond its range would not go into a message
            return value if value != value or abs(value) < 3e38 else float("inf")
        return float(value)


def built(kind: type[Message], feed: Feed, depth: int = 0) -> Any:
    """A message of `kind`; a byte before each field says whether it is set."""
    message: Any = kind()
    field: Any  # there are two classes of descriptors
    for field in kind.DESCRIPTOR.fields:
        if feed.byte() & 3 == 0 or depth == DEEPEST:
            continue
        _set(message, field, feed, depth)
    if kind.DESCRIPTOR.full_name == "logitsieve.v1.Tensor" and feed.byte() & 7:
        _fit(message, feed)
    return message


def respell(good: Message, feed: Feed) -> Any:
    """A copy of a good message with other values in a third of its fields, while bytes are left."""
    message: Any = type(good)()
    message.CopyFrom(good)
    field: Any
    for field in message.DESCRIPTOR.fields:
        if feed.byte() % 3 != 1:
            continue
        held = getattr(message, field.name)
        if field.message_type is not None and not field.is_repeated and feed.byte() % 4:
            held.CopyFrom(respell(held, feed))
        elif field.is_repeated and not _is_map(field) and field.message_type and held:
            one = held[feed.byte() % len(held)]
            one.CopyFrom(respell(one, feed))
        else:
            message.ClearField(field.name)
            _set(message, field, feed, 0)
    return message


def _set(message: Any, field: Any, feed: Feed, depth: int) -> None:
    held = getattr(message, field.name)
    if _is_map(field):
        for _ in range(feed.byte() % MANY):
            key = feed.word()
            if field.message_type.fields_by_name["value"].message_type is None:
                held[key] = feed.real(8)
            else:
                held[key].CopyFrom(built(type(held[key]), feed, depth + 1))
    elif field.is_repeated:
        _extend(held, field, feed, depth)
    elif field.message_type is not None:
        held.CopyFrom(built(type(held), feed, depth + 1))
    else:
        setattr(message, field.name, _scalar(field, feed))


def _extend(held: Any, field: Any, feed: Feed, depth: int) -> None:
    count = feed.byte() % (100 if field.cpp_type == Field.CPPTYPE_FLOAT else MANY)
    for _ in range(count):
        if field.message_type is None:
            held.append(_scalar(field, feed))
        else:
            one = held.add()
            one.CopyFrom(built(type(one), feed, depth + 1))


def _scalar(field: Any, feed: Feed) -> Any:
    kind = field.cpp_type
    if kind in UNSIGNED:
        return feed.whole(UNSIGNED[kind], False)
    if kind in SIGNED:
        return feed.whole(SIGNED[kind], True)
    if kind in (Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE):
        return feed.real(4 if kind == Field.CPPTYPE_FLOAT else 8)
    if kind == Field.CPPTYPE_BOOL:
        return bool(feed.byte() & 1)
    return feed.take(feed.byte()) if field.type == Field.TYPE_BYTES else feed.word()


def _fit(tensor: Any, feed: Feed) -> None:
    """Few rows, and as many bytes as they need."""
    tensor.dtype %= len(SIZES)
    tensor.rows, tensor.cols = tensor.rows % 70, tensor.cols % 70
    tensor.data = feed.take(1) * (SIZES[tensor.dtype] * tensor.rows * tensor.cols)


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)
