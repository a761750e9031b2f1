"""`logitsieve serve`: the gRPC server."""

from __future__ import annotations

from logitsieve.cli.output import bars
from logitsieve.server.config import ServeConfig


def command(config: ServeConfig) -> None:
    """Answer requests over gRPC until SIGTERM or Ctrl-C.

    Example: logitsieve serve --models models --port 50051
    """
    from logitsieve.server.app import serve

    serve(config, progress=bars)
