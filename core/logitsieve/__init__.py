"""The output layer of a language or translation model, without computing every logit.

`import logitsieve as ls` loads nothing: the names here are imported when they are first read.
`logitsieve` is one package in several source folders, of which this is the only `__init__.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logitsieve.api.errors import LogitsieveError
    from logitsieve.api.watermark import WatermarkKey
    from logitsieve.client import AdminClient, AsyncDecoderClient, DecoderClient
    from logitsieve.client.beam_search import beam_search
    from logitsieve.decoding import LocalDecoder
    from logitsieve.decoding.watermark import detect_watermark
    from logitsieve.index import open_index
    from logitsieve.index_builder import BuildConfig, build
    from logitsieve.version import __version__

__path__ = __import__("pkgutil").extend_path(__path__, __name__)

__all__ = [
    "AdminClient", "AsyncDecoderClient", "BuildConfig", "DecoderClient", "LocalDecoder",
    "LogitsieveError", "WatermarkKey", "__version__", "beam_search", "build", "detect_watermark",
    "open_index",
]  # fmt: skip

_NAMES = {
    "api.errors": ["LogitsieveError"],
    "api.watermark": ["WatermarkKey"],
    "client": ["AdminClient", "AsyncDecoderClient", "DecoderClient"],
    "client.beam_search": ["beam_search"],
    "decoding": ["LocalDecoder"],
    "decoding.watermark": ["detect_watermark"],
    "index": ["open_index"],
    "index_builder": ["BuildConfig", "build"],
    "version": ["__version__"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
