"""The `logitsieve` command: a module for each subcommand."""

import os

from logitsieve.cli.app import app


def main() -> None:
    """Run the command; exit code 0: done, 1: could not, 2: bad input."""
    # gRPC's own lines say less than our errors.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    app(prog_name="logitsieve")
