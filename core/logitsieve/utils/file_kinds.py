"""Name a file by its first bytes where something else was expected, as after a broken download."""

from pathlib import Path

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
    """Check a file's first bytes; False if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(magic)) == magic
    except OSError:
        return False


def kind_of(path: Path) -> str:
    """Return what a file is, "" if unknown or unreadable."""
    try:
        with path.open("rb") as stream:
            begun = stream.read(READ)
    except OSError:
        return ""
    if begun[8:9] == b"{" and not any(begun[4:8]):  # the length of a header in eight bytes
        return "a .safetensors file"
    lower = begun.lstrip().lower()
    return next((name for start, name in BEGINNINGS.items() if _begins(begun, lower, start)), "")


def _begins(begun: bytes, lower: bytes, start: bytes) -> bool:
    return begun.startswith(start) or lower.startswith(start)
