"""`python -m benchmarks.translate`."""

from benchmarks.translate.run import main

main()
