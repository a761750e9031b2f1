"""The head that answers while a text is generated, and its speed."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitsieve.cli.background import BackgroundIndex
    from logitsieve.client.llamacpp import LlamaAttachment
    from logitsieve.client.llamacpp_generation import Counts
    from logitsieve.decoding import LocalDecoder

DENSE, CERTIFIED = "dense", "certified"
DENSE_ANSWERS = "llama.cpp's own head answers."
SLOW = "\nMore than half of the rows were computed: --head dense is likely as fast here."
SLOW_SHARE = 0.5  # of the rows


class Handover:
    """llama.cpp's own head until an index is made, then one of the index."""

    def __init__(
        self,
        attached: LlamaAttachment,
        making: BackgroundIndex | None,
        head: str,
        wanted: str,
        threads: int,
    ) -> None:
        """`head` answers first, then `wanted` of the index, on `threads`."""
        self.head = head
        self._attached, self._making = attached, making
        self._wanted, self._threads = wanted, threads
        self._before: Counts | None = None  # at the handover

    def follow(self, counts: Counts) -> None:
        """Let the index answer from the next token on, once it is ready."""
        making = self._making
        if making is None or (making.decoder is None and not making.error):
            return
        self._making = None
        self._attached.context.use_threads(self._threads)
        if making.decoder is None:
            self._say(f"No index could be made: {making.error}")
            return
        self.head = grade_of(making.decoder, self._wanted)
        self._attached.swap(making.decoder, head=self.head)
        self._before = replace(counts)
        self._say(f"The index is made after {making.seconds:.0f} s: {self.head} answers from here.")

    def end(self, wait: bool) -> None:
        """Print the state of an unused index; `wait` until it is made."""
        making = self._making
        if making is None:
            return
        if wait:
            making.wait()
        ended = "is not finished and is dropped: --wait lets it finish."
        if making.error:
            ended = f"could not be made: {making.error}"
        elif making.decoder is not None:
            ended = "is made: the next text begins with it."
        print(f"After {making.seconds:.0f} s the index {ended}", file=sys.stderr)

    def cost(self, counts: Counts) -> str:
        """Return the speed before and after the handover, and the last head's rows."""
        vocab_size = self._attached.context.gguf.vocab_size
        if self._before is None or self._before.tokens == counts.tokens:
            return _cost(counts, vocab_size, self.head)
        own = _cost(self._before, vocab_size, DENSE)
        return f"{own}; then {_cost(_less(counts, self._before), vocab_size, self.head)}"

    def _say(self, line: str) -> None:
        print("\n" * sys.stdout.isatty() + line, file=sys.stderr)


def grade_of(decoder: LocalDecoder | None, wanted: str) -> str:
    """Return `wanted`, or `certified` if the index does not have it."""
    if decoder is None:
        return DENSE
    return wanted if wanted in decoder.index.heads else CERTIFIED


def _less(counts: Counts, before: Counts) -> Counts:
    return type(counts)(
        **{name: value - getattr(before, name) for name, value in asdict(counts).items()}
    )


def _cost(counts: Counts, vocab_size: int, head: str) -> str:
    speed = f"{counts.tokens} tokens: {counts.tokens / counts.seconds:,.1f} a second"
    if head == DENSE:  # part of llama.cpp's graph, without a time of its own
        return f"{speed}, all {vocab_size:,} logits of each"
    scanned = counts.scanned / counts.tokens
    much = scanned > SLOW_SHARE * vocab_size
    return (
        f"{speed}, the head alone {counts.tokens / counts.head_s:,.0f}; "
        f"{scanned:,.0f} of {vocab_size:,} rows a token, {counts.proven} tokens proven"
    ) + SLOW * much
