"""`python -m benchmarks.race DATA`."""

from benchmarks.race.run import main

main()
