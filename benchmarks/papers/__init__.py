"""The five papers' tables and figures by what is shipped: `python -m benchmarks.papers`."""
