"""The `logitsieve` command."""

from logitsieve.cli.app import app


def main() -> None:
    """Run the command; exit code 0: done, 1: could not, 2: bad input."""
    app(prog_name="logitsieve")
