"""Compiled kernels: arrays in, arrays out; the only place with hot loops.

Shape letters: B batch rows, Q of them answered together, D hidden size, V vocabulary, K answers, N
draws, E edits of all rows, S named ids of all rows; in a sketch P coordinates and G groups of 16
rows; C clusters, P probes; L hash tables of N bits, J = L N planes. CSR lists: row r has offsets[r]
.. offsets[r+1]-1.

An entry kernel gets the `address` of a descriptor, of W unless it says otherwise, and answers rows
start .. stop-1 of hidden [B, D]. It returns -1, or the first row that is not finite or too large.
"""

from logitsieve.utils.environment import require

require("server", "numba")  # of all that compute: a client alone goes without
