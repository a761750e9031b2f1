from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logitsieve.server.app import Server, create_server, serve
    from logitsieve.server.config import ServeConfig

__all__ = ["ServeConfig", "Server", "create_server", "serve"]


def __getattr__(name: str) -> Any:
    """Import the server when it is first used, since the CLI reads config.py without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("logitsieve.server.app"), name)
