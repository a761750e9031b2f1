"""Checks of installed extras, of local addresses, and of what a file is."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from logitsieve.api.errors import MissingExtra


def require(extra: str, *modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra)


def is_loopback(host: str) -> bool:
    """Return True for IP addresses and names that every resolver maps to this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def name_in_errors(file: Path) -> Iterator[None]:
    """Name `file` in an OSError without a file, such as a full disk's."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def reason_of(error: Exception) -> str:
    """Return the error's text, without the number and path of an OSError."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


BEGINNINGS = {
    b"version https://git-lfs": "a Git LFS pointer; the file that it names was not downloaded",
    b"<!doctype": "a web page",
    b"<html": "a web page",
    b"<?xml": "an XML document",
    b"GGUF": "a GGUF file",
    b"tjgg": "a GGJT file, from before GGUF",
    b"fmgg": "a GGMF file, from before GGUF",
    b"lmgg": "a GGML file, from before GGUF",
    b"PK\3\4": "a zip archive (.npz, .pt)",
    b"\x1f\x8b": "a gzip archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"\x93numpy": "a .npy file",
}
READ = 64  # bytes


def begins_with(path: Path, magic: bytes) -> bool:
    """Compare a file's first bytes; False if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(magic)) == magic
    except OSError:
        return False


def kind_of(path: Path) -> str:
    """Say what kind of file it is; "" if unknown or unreadable."""
    try:
        with path.open("rb") as stream:
            begun = stream.read(READ)
    except OSError:
        return ""
    if begun[8:9] == b"{" and not any(begun[4:8]):  # eight bytes have the length of the header
        return "a .safetensors file"
    texts = begun, begun.lstrip().lower()
    found = (name for start, name in BEGINNINGS.items() if any(t.startswith(start) for t in texts))
    return next(found, "")
