import os
from contextlib import nullcontext

from logitsieve.cli.output import bars
from logitsieve.server.config import ServeConfig
from logitsieve.utils.options import no_progress

# Without this, each call would pass through a thread more: one waits for events, another reads.
EXPERIMENTS = "-event_engine_listener"


def command(config: ServeConfig) -> None:
    """Answer requests over gRPC until SIGTERM or Ctrl-C.

    Example: logitsieve serve --model-repository models --port 50051
    """
    as_json = config.log_format == "json"
    os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)  # read when gRPC is imported
    from logitsieve.server.app import serve

    serve(config, progress=(lambda: nullcontext(no_progress)) if as_json else bars)
