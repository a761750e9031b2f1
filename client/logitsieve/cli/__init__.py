"""The `logitsieve` command, with a module for each subcommand."""

import os
import signal
import sys

INTERRUPTED = 130  # a shell's exit code for SIGINT


def main() -> None:
    """Run the command. Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted."""
    # gRPC's own log says less than our errors, is not JSON, and clients could fill it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from logitsieve.cli.app import app  # slow; Ctrl-C may come meanwhile

        app(prog_name="logitsieve")
        return
    except KeyboardInterrupt:
        pass
    except SystemExit as ended:  # typer turns KeyboardInterrupt into it
        if ended.code != INTERRUPTED:
            raise
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)
