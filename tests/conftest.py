"""Kernels for a card run under Triton's interpreter, unless TRITON_INTERPRET=0 asks for the card.

It is read when a kernel is defined, so it is set before any test is imported.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
