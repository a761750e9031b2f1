"""The public contract: decoders, requests, results, constraints and errors.

Shape letters of all packages, in brackets and at the ends of names: B batch rows, D hidden size, V
vocabulary or classes, K answers, T ids to score, N draws, M ids of a row, S rows of W that a head
scans, G groups of beams. A file with other letters names them at its top.
"""
