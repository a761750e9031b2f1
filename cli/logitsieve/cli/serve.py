"""`logitsieve serve`: the gRPC server."""

from __future__ import annotations

from logitsieve.cli.console import bars
from logitsieve.cli.options import with_options
from logitsieve.server.app import serve
from logitsieve.server.config import ServeConfig


@with_options(ServeConfig, from_file=True)
def command(config: ServeConfig) -> None:
    """Answer requests over gRPC until SIGTERM or Ctrl-C.

    Example: logitsieve serve --models models --port 50051
    """
    serve(config, progress=bars)
