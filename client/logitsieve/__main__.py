"""`python -m logitsieve`: the command."""

from logitsieve.cli import main

main()
