"""The `logitsieve` command: a module for each subcommand."""

import os
import signal
import sys

INTERRUPTED = 130  # as a shell says of SIGINT


def main() -> None:
    """Run the command; exit code 0: done, 1: could not, 2: bad input, 130: interrupted."""
    # Lines of gRPC's core say less than our errors, are no JSON, and clients cause any number.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from logitsieve.cli.app import app  # takes a while, in which Ctrl-C may come

        app(prog_name="logitsieve")
        return
    except KeyboardInterrupt:
        pass
    except SystemExit as ended:  # typer's for an interrupted command
        if ended.code != INTERRUPTED:
            raise
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one meets no more of Python
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)
