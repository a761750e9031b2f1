"""Reads arrays from `.npy`, folders of numbered shards, `.safetensors:name`, `.npz:name`, `.gguf`.

Files are mapped, except for `.npz`, and never unpickled.
"""

import logging
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.api.results import ArrayLike, Float32
from logitsieve.index_builder.config import GIVEN
from logitsieve.utils.environment import begins_with, kind_of, name_in_errors, reason_of
from logitsieve.utils.floats import LARGEST, STORED, finite, narrowed, widened
from logitsieve.utils.hidden import as_rows
from logitsieve.utils.stored import KINDS, StoredMatrix

TYPES = "float16, float32, float64 or bfloat16 (or its uint16 view)"
FILES = f"FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME, of {TYPES}"
FORMS = f"a folder of numbered .npy files, {FILES}"
SHAPES = {"weight": "[V, D]", "bias": "[V]"}
SAFETENSORS_TYPES = ("F16", "BF16", "F32", "F64")
ROUNDED_AT_ONCE = 1 << 20
GGUF = ".gguf"
BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r"})

logger = logging.getLogger(__name__)


def load_array(source: Path | str, field: str = "array") -> np.ndarray:
    path, name = _split(source)
    match path.suffix:
        case ".npy":
            return _map_npy(path, field)
        case ".npz":
            return _read_npz(path, name, field)
        case ".safetensors":
            return _map_safetensors(path, name, field)
    kind = kind_of(path)
    raise InvalidRequest(field, f"{path}{kind and ', ' + kind}", _forms(field))


def map_arrays(source: Path | str, field: str) -> list[np.ndarray]:
    path, name = _split(source)
    if path.is_dir() and not name:
        return [_map_npy(shard, field) for shard in _shards(path, field)]
    return [load_array(source, field)]


def reserve(file: Path, array: np.memmap, start: int, stop: int) -> None:
    """Reserve disk space for rows of a mapped `array`; without it, a full disk raises SIGBUS."""
    row = array.strides[0]
    with name_in_errors(file), file.open("r+b") as stream:
        os.posix_fallocate(stream.fileno(), array.offset + start * row, (stop - start) * row)


def save(file: Path, array: np.ndarray) -> None:
    array = np.ascontiguousarray(array)
    with name_in_errors(file), file.open("wb") as stream:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(array.tobytes())


def _split(source: Path | str) -> tuple[Path, str]:
    text = str(source)
    for suffix in (".npz", ".safetensors"):
        path, separator, name = text.partition(f"{suffix}:")
        if separator:
            return Path(path + suffix), name
    return Path(text), ""


def _map_npy(path: Path, field: str) -> np.ndarray:
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise _refused(field, path, error) from error


def _map_safetensors(path: Path, name: str, field: str) -> np.ndarray:
    from logitsieve.index.tensorfile import map_tensors  # loads numba

    try:
        file = map_tensors(path, foreign=True)
    except IndexUnreadable as error:
        raise _refused(field, path, error) from error
    _check_name(list(file.codes), name, path, field)
    if (code := file.codes[name]) not in SAFETENSORS_TYPES:
        raise InvalidRequest(field, f"{path}: {name} is {code}", "F16, BF16, F32 or F64")
    return file.tensors[name]


def _shards(folder: Path, field: str) -> list[Path]:
    numbered: dict[int, Path] = {}
    for path in sorted(path for path in folder.glob("*.npy") if path.stem.isdecimal()):
        other = numbered.setdefault(int(path.stem), path)
        if other != path:
            got = f"{folder}: {other.name} and {path.name}"
            raise InvalidRequest(field, got, "one file of each number")
    if not numbered:
        raise InvalidRequest(field, f"{folder}: no numbered .npy file", FORMS)
    if missing := set(range(max(numbered) + 1)) - set(numbered):
        raise InvalidRequest(
            field, f"{folder}: no shard {min(missing)}", f"every shard from 0 to {max(numbered)}"
        )
    return [numbered[number] for number in sorted(numbered)]


def _read_npz(path: Path, name: str, field: str) -> np.ndarray:
    try:
        with zipfile.ZipFile(path) as archive:
            files = [file for file in archive.namelist() if file.endswith(".npy")]
            _check_name([file.removesuffix(".npy") for file in files], name, path, field)
            with archive.open(f"{name}.npy") as packed:
                return np.asarray(np.lib.format.read_array(packed, allow_pickle=False))
    except InvalidRequest:
        raise
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise _refused(field, path, error) from error


def _check_name(names: list[str], name: str, path: Path, field: str) -> None:
    if name not in names:
        got = f"{path}: no array named {name!r}" if name else f"{path} without an array's name"
        raise InvalidRequest(field, got, f"{path}:NAME, NAME one of {', '.join(names)}")


def _refused(field: str, path: Path, error: Exception) -> InvalidRequest:
    reason = (reason_of(error) or type(error).__name__).splitlines()[0][:200]
    if (kind := kind_of(path)) and path.suffix not in kind:
        reason = f"it is {kind}"
    if "allow_pickle" in reason or "Python objects" in reason:
        reason = "not an array of numbers"
    got = reason if str(path) in reason else f"{path}: {reason}"
    return InvalidRequest(field, got, _forms(field))


def _forms(field: str) -> str:
    return {"weight": f"MODEL.gguf, {FILES}", "bias": FILES}.get(field, FORMS)


def matrix(weight: ArrayLike, dtype: str) -> np.ndarray:
    """Return [V, D] as `dtype`, a name in STORED; "given" keeps half types, others become float32.

    bfloat16 is stored as uint16. InvalidRequest for another shape, NaN, or overflow.
    """
    array = load_array(weight, "weight") if isinstance(weight, (str, Path)) else weight
    if np.ndim(array) != 2:
        raise InvalidRequest("weight", f"shape {list(np.shape(array))}", "[V, D]")
    rows = _rows(array, "weight")
    if dtype == GIVEN:
        dtype = next((name for name, kind in STORED.items() if kind == rows.dtype), "float32")
    return np.ascontiguousarray(_stored_as(dtype, rows, "weight"))


def stored_matrix(weight: ArrayLike | StoredMatrix, dtype: str) -> StoredMatrix:
    if not isinstance(weight, StoredMatrix):
        return StoredMatrix.of(matrix(weight, dtype))
    if not KINDS[weight.kind].blocks:
        return StoredMatrix.of(matrix(weight.data, dtype))
    if (row := weight.row_without_scale()) is not None:
        raise InvalidRequest(f"weight[{row}]", "NaN or infinity as a scale", "finite scales")
    if dtype == GIVEN:
        return weight
    from logitsieve.kernels.rows.functions import decoded  # loads numba

    return StoredMatrix.of(matrix(decoded(weight), dtype))


def vector(bias: ArrayLike | None, vocab_size: int, dim: int = 0) -> Float32:
    if bias is None:
        return np.zeros(vocab_size, np.float32)
    array = load_array(bias, "bias") if isinstance(bias, (str, Path)) else bias
    if np.shape(array) != (vocab_size,):
        allowed = f"[V] = [{vocab_size}]{if_turned(np.size(array), dim)}"
        raise InvalidRequest("bias", f"shape {list(np.shape(array))}", allowed)
    rows = _rows(array, "bias")
    copied: Float32 = _stored_as("float32", rows.copy(), "bias")[0]
    return copied


def if_turned(got: int, other: int) -> str:

    return " (is the weight transposed?)" if got == other else ""


def _rows(array: ArrayLike, field: str) -> np.ndarray:
    try:
        return as_rows(array)
    except InvalidRequest as error:
        raise InvalidRequest(field, error.got, f"{SHAPES[field]} of {TYPES}") from error


def _stored_as(dtype: str, rows: np.ndarray, field: str) -> np.ndarray:
    same = rows.dtype == STORED[dtype]
    stored = rows if same else np.empty(rows.shape, STORED[dtype])
    step = max(1, ROUNDED_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        if not same:
            half = piece.dtype in (np.float16, np.uint16)
            stored[start : start + step] = narrowed(widened(piece) if half else piece, dtype)
        good = finite(stored[start : start + step])
        if good.all():
            continue
        if not finite(piece).all():
            raise InvalidRequest(field, "NaN or infinity", "finite values")
        row, column = np.unravel_index(int(good.argmin()), good.shape)
        number = float((widened(piece) if piece.dtype == np.uint16 else piece)[row, column])
        raise InvalidRequest(
            f"{field}[{start + int(row)}, {int(column)}]",
            f"{number:g}, infinite as {dtype}",
            f"numbers that {dtype} holds, up to {LARGEST[dtype]:g}",
        )
    return stored


def gguf_output_layer(
    path: Path | str, bias: ArrayLike | None, vocabulary: Sequence[str] | None
) -> tuple[ArrayLike | StoredMatrix, ArrayLike | None, Sequence[str] | None]:
    """Read weight, bias and (unless given) `vocabulary` from a GGUF file.

    The matrix is mapped as it is, or float32 if an index cannot store its type. InvalidRequest
    names `weight` if the file cannot be used, `bias` if one is given.
    """
    from logitsieve.llamacpp.model_file import GgufModel  # loads numba

    if bias is not None:
        raise InvalidRequest("bias", "one", "none beside a GGUF file, which holds the model's own")
    gguf = GgufModel(path, "weight")
    matrix = gguf.matrix
    weight: ArrayLike | StoredMatrix
    if matrix.kind in KINDS:
        weight = StoredMatrix(matrix.kind, matrix.blocks)
    else:
        logger.warning(
            "%s: %s is %s; the index stores its values in float32", path, matrix.name, matrix.kind
        )
        weight = matrix.dense()
    if vocabulary is None and gguf.vocabulary and len(gguf.vocabulary) == gguf.vocab_size:
        vocabulary = [word.translate(BREAKS) for word in gguf.vocabulary]
    return weight, gguf.bias, vocabulary


def is_gguf(weight: Any) -> TypeGuard[str | Path]:
    if not isinstance(weight, str | Path):
        return False
    return str(weight).endswith(GGUF) or begins_with(Path(weight), b"GGUF")
