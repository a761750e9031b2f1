"""`logitsieve serve`: the gRPC server."""

from __future__ import annotations

import os
from contextlib import nullcontext

from logitsieve.cli.output import bars
from logitsieve.server.config import ServeConfig
from logitsieve.utils.options import no_progress


def command(config: ServeConfig) -> None:
    """Answer requests over gRPC until SIGTERM or Ctrl-C.

    Example: logitsieve serve --models models --port 50051
    """
    as_json = config.log_format == "json"
    if as_json:  # gRPC's core writes lines of its own, unless told before its import
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from logitsieve.server.app import serve

    serve(config, progress=(lambda: nullcontext(no_progress)) if as_json else bars)
