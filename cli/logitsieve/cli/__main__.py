"""`python -m logitsieve.cli`."""

from logitsieve.cli import main

main()
