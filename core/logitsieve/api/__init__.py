"""The public contract: decoders, requests, results, constraints and errors.

Shape letters of all packages, at the ends of names and in brackets: B batch rows, D hidden size, V
vocabulary or classes, K answers, and in decoders, heads and the GPU's: T ids to score, N draws, M
ids of a row, S rows of W that a head scans, G groups of beams. A file names others at its top.
"""
