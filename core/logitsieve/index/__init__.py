"""An immutable on-disk index: a manifest and verified, memory-mapped parts."""

from logitsieve.index.index import Index, open_index, verify_index
from logitsieve.index.manifest import FileEntry, HeadEntry, Manifest
from logitsieve.index.split import split_index
from logitsieve.index.writer import link_index, new_path, write_index

__all__ = [
    "FileEntry", "HeadEntry", "Index", "Manifest", "link_index", "new_path", "open_index",
    "split_index", "verify_index", "write_index",
]  # fmt: skip
