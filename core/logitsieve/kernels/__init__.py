"""Compiled kernels, the only place with hot loops.

Shape letters: B rows of hidden, Q of them answered together, D hidden size, V vocabulary, K
answers, N draws, E edits and S named ids of all rows, C clusters, P probes, L hash tables of N
bits, J = L N planes, G groups of 16 rows. CSR row r has offsets[r] .. offsets[r+1]-1.

An entry kernel takes the `address` of a descriptor (of W, unless it says otherwise) and answers
rows start .. stop-1 of hidden [B, D]. It returns -1, or the first row that is not finite or too
large; kernels of heads return a status (`TopKernel`). Results do not depend on batch or CPU.
"""

from logitsieve.utils.environment import require

require("server", "numba")  # a client alone does without it
