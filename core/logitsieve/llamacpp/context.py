"""A llama.cpp model with its key-value cache, which can stop before the output layer.

The hook sees rows in llama.cpp's own order. To know it, a batch has either tokens of one sequence,
or one token of each of several, in ascending order and in one graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest, LogitsieveError
from logitsieve.api.results import Float32
from logitsieve.llamacpp.hook import COPY, OFF, OTHER, REPLACE, STOP, HiddenHook
from logitsieve.llamacpp.host import ContextOptions, Host
from logitsieve.llamacpp.hosts import LLAMACPP
from logitsieve.llamacpp.model import WITHOUT_RESULT_NORM, LlamaModel
from logitsieve.llamacpp.model_file import GgufModel
from logitsieve.llamacpp.probe import OtherLogits, compare_logits
from logitsieve.llamacpp.tokenizer import MOST_TEXT

POSITIONS, BATCH = 4096, 512  # default tokens in the cache, and tokens of one decode
CACHED = 256  # llama.cpp rounds caches up to this, but checks batches before rounding
MOST_SEQUENCES, MOST_POSITIONS, MOST_THREADS = 256, 1 << 20, 1024
# Tokens that `look_ahead` reads at once. With some types of blocks four rows get other bits than
# one does, but only in some rows, so that its comparison might not notice.
MOST_AHEAD = 3


class LlamaContext(LlamaModel):
    """A model in a GGUF file that decodes on the CPU, called by one thread at a time.

    The `sequences` share a cache of `positions` tokens, rounded up to a multiple of 256. If
    `separate`, as always in ik_llama.cpp, each has an equal part, and the bits of its outputs do
    not depend on other sequences. One thread then uses flash attention, with which `look_ahead` can
    read several tokens at once.

    A decode returns llama.cpp's logits [B, V] or, while `headless`, the hidden states [B, D] before
    the output layer, times the architecture's scale of logits. `engine` is one of HOSTS or an open
    Host. InvalidRequest tells what is wrong with the file, the engine, the model or an argument.
    """

    def __init__(
        self,
        gguf: GgufModel | Path | str,
        *,
        sequences: int = 1,
        positions: int | None = None,
        threads: int = 1,
        separate: bool = False,
        engine: str | Host = LLAMACPP,
    ) -> None:
        self.sequences = whole("sequences", sequences, 1, MOST_SEQUENCES)
        self.headless = False
        super().__init__(gguf, engine)
        api, model = self._api, self._model
        self._rolling = api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model)
        self.separate = separate or (self.host.apart and sequences > 1)
        if self._rolling and sequences > 1:
            raise InvalidRequest("sequences", sequences, "1 with a recurrent model")
        self._hook = HiddenHook(self.host.tensor, BATCH, self.gguf.dim)
        wanted = positions
        if wanted is None:
            trained = self.trained_positions
            wanted = min(POSITIONS, trained * sequences)
            if self.separate:
                wanted = min(POSITIONS, trained) * sequences
        wanted = whole("positions", wanted, 1, MOST_POSITIONS)
        self.threads = whole("threads", threads, 1, MOST_THREADS)
        self._contexts = self._make(wanted)
        self.positions: int = sum(map(self._api.llama_n_ctx, self._contexts))
        self._batch = self.host.batch(BATCH)
        self._closing(self._api.llama_batch_free, self._batch)
        self._lengths = [0] * self.sequences
        self._drafted = [0] * self.sequences  # cached tokens beyond the lengths
        # (headless, threads, part of the cache) -> how many tokens keep their bits when read at
        # once: known to, and at most.
        self._steady: dict[tuple[bool, int, int], list[int]] = {}
        self._probe()

    def __repr__(self) -> str:
        return f"<LlamaContext {str(self.gguf.path)!r} of {self.sequences} sequences>"

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    @property
    def longest_text(self) -> int:
        """Bytes of the longest prompt that can fit a sequence."""
        most = self.positions // self.sequences if self.separate else self.positions
        return min(most * self.longest_token, MOST_TEXT)

    @property
    def free(self) -> int:
        return self.positions - sum(self._lengths)

    def room(self, sequence: int) -> int:
        if not self.separate:
            return self.free
        return self.positions // self.sequences - self._lengths[self._sequence(sequence)]

    def fitting(self, sequences: Sequence[int]) -> list[int]:
        """Return the sequences that a step can append to; with a shared cache, all or none."""
        if self.separate:
            return [sequence for sequence in sequences if self.room(sequence)]
        return [*sequences] if len(sequences) <= self.free else []

    def use_threads(self, count: int) -> None:
        """Decode with `count` threads from now on.

        A `separate` context of llama.cpp cannot change between one thread and several.
        """
        count = whole("threads", count, 1, MOST_THREADS)
        if self.separate and not self.host.apart and (count > 1) != (self.threads > 1):
            raise InvalidRequest("threads", count, "1" if self.threads == 1 else "2 or more")
        self.threads = count
        self._set_threads(count)

    def _set_threads(self, count: int) -> None:
        with self.host.messages():
            for context in self._contexts:
                self._api.llama_set_n_threads(context, count, count)

    def forget(self, sequence: int | None = None) -> None:
        each = range(self.sequences) if sequence is None else [sequence]
        for one in each:
            self._running.remove(*self._place(self._sequence(one)))
            self._lengths[one] = self._drafted[one] = 0

    def read(self, tokens: Sequence[int], sequence: int = 0, *, every: bool = False) -> Float32:
        """Append tokens to a sequence; return the output of the last one, or of `every` one."""
        self._check(tokens, sequence)
        outputs = []
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            last = start + BATCH >= len(tokens)
            marks = [every or (last and place == len(part) - 1) for place in range(len(part))]
            output = self._decode([(sequence, token) for token in part], marks)
            if every or last:
                outputs.append(output)
        return np.concatenate(outputs)

    def read_alone(self, tokens: Sequence[int], *, headless: bool = True) -> Float32:
        """Read tokens into an emptied cache; return the hidden states or logits of every one."""
        before, self.headless = self.headless, headless
        self.forget()
        try:
            return self.read(tokens, every=True)
        finally:
            self.headless = before

    def step(self, tokens: Mapping[int, int]) -> Float32:
        """Append one token to each of some sequences; return the outputs [B, .] in their order."""
        for sequence, token in tokens.items():
            self._check([token], sequence)
        if not 0 < len(tokens) <= self.free:
            allowed = f"1 to {self.free}, the space in the cache"
            raise InvalidRequest("tokens", f"{len(tokens)} tokens", allowed)
        order = sorted(tokens)
        runs = self._runs(order)
        rows = [
            self._decode([(one, tokens[one]) for one in run], [True] * len(run)) for run in runs
        ]
        place = {sequence: row for row, sequence in enumerate(order)}
        return np.concatenate(rows)[[place[sequence] for sequence in tokens]]

    def look_ahead(self, tokens: Sequence[int], sequence: int = 0) -> Float32:
        """Append a token, read drafts after it, and return the outputs of the first tokens, [N, .].

        Outputs have the bits that `step` gives. `accept` appends the drafts one by one, and the
        next call drops the rest. llama.cpp has other kernels for more rows, and for the attention
        of one token in a long cache on several threads. So each number of tokens is compared with
        single steps once in every CACHED positions, and no longer used if bits differ.
        """
        tokens = tokens[:MOST_AHEAD]
        self._check(tokens[:1], sequence)
        start = self._lengths[sequence]
        part = start // CACHED  # attention reads whole parts of the cache
        steady = self._steady.setdefault((self.headless, self.threads, part), [1, MOST_AHEAD])
        most = min(
            limit
            for (headless, threads, before), (_, limit) in self._steady.items()
            if (headless, threads) == (self.headless, self.threads) and before <= part
        )
        tokens = tokens[: min(most, CACHED - start % CACHED, self.room(sequence))]
        if self._rolling:
            tokens = tokens[:1]
        self._check(tokens, sequence)
        if len(tokens) <= steady[0]:
            return self._drafts(tokens, sequence)
        alone = [self._drafts([token], sequence) for token in tokens]
        self.take_back(sequence, len(tokens))
        rows = self._drafts(tokens, sequence)
        if np.array_equal(rows, np.concatenate(alone)):
            steady[0] = len(tokens)
            return rows
        steady[1] = len(tokens) - 1
        self.take_back(sequence, 1)
        return self._drafts(tokens[:1], sequence)

    def accept(self, sequence: int = 0) -> None:
        self.take_back(sequence, -1)

    def take_back(self, sequence: int, count: int = 1) -> None:
        """Shorten a sequence by `count` tokens, which `accept` appends again one by one."""
        self._lengths[sequence] -= count
        self._drafted[sequence] += count

    def _drafts(self, tokens: Sequence[int], sequence: int) -> Float32:
        rows = self._decode([(sequence, token) for token in tokens], [True] * len(tokens))
        self.take_back(sequence, len(tokens) - 1)
        return rows

    def _drop_drafts(self, sequence: int) -> None:
        if self._drafted[sequence]:
            if not self._running.remove(*self._place(sequence), self._lengths[sequence]):
                raise LogitsieveError("llama.cpp: the end of a sequence cannot be removed")
            self._drafted[sequence] = 0

    def _decode(self, tokens: Sequence[tuple[int, int]], marks: Sequence[bool]) -> Float32:
        api = self._api  # raises if closed, before anything is written
        sequences = {sequence for sequence, _ in tokens}
        for sequence in sequences:
            self._drop_drafts(sequence)
        context = self._fill(tokens, marks)
        self._hook.begin(STOP if self.headless else OFF)
        self._run(api, context)
        for sequence, _ in tokens:
            self._lengths[sequence] += 1
        if not self.headless:
            return self._logits(context, [place for place, marked in enumerate(marks) if marked])
        hidden_states = self._hook.rows()
        self._refuse_fault(len(hidden_states), sum(marks))
        if len(sequences) > 1 and self._hook.graphs > 1:
            raise LogitsieveError("llama.cpp: a step of several sequences was not computed at once")
        return (
            hidden_states if self.gguf.scale == 1 else hidden_states * np.float32(self.gguf.scale)
        )

    def _fill(self, tokens: Sequence[tuple[int, int]], marks: Sequence[bool]) -> int:
        batch, ahead = self._batch, dict.fromkeys(range(self.sequences), 0)
        batch.n_tokens = len(tokens)
        for place, ((sequence, token), marked) in enumerate(zip(tokens, marks, strict=True)):
            batch.token[place] = token
            batch.pos[place] = self._lengths[sequence] + ahead[sequence]
            batch.n_seq_id[place] = 1
            context, batch.seq_id[place][0] = self._place(sequence)
            batch.logits[place] = marked
            ahead[sequence] += 1
        return context

    def _run(self, api: Any, context: int) -> None:
        if status := api.llama_decode(context, self._batch):
            raise LogitsieveError(f"{self.host.name}: llama_decode returned {status}")

    def _logits(self, context: int, places: Sequence[int]) -> Float32:
        shape = ctypes.c_float * self.gguf.vocab_size
        rows = np.empty((len(places), self.gguf.vocab_size), np.float32)
        for row, place in zip(rows, places, strict=True):
            if not (address := self._api.llama_get_logits_ith(context, place)):
                raise self._refused(f"{self.gguf.architecture} without logits", WITHOUT_RESULT_NORM)
            row[:] = np.ctypeslib.as_array(shape.from_address(address))
        return rows

    def _check(self, tokens: Sequence[int], sequence: int) -> None:
        self._sequence(sequence)
        if not len(tokens):
            raise InvalidRequest("tokens", "none", "one or more")
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self.gguf.vocab_size:
            raise InvalidRequest("tokens", f"{low} .. {high}", f"0 .. {self.gguf.vocab_size - 1}")
        if len(tokens) > (room := self.room(sequence)):
            got = f"{len(tokens)} tokens"
            raise InvalidRequest("tokens", got, f"at most {room}, the space in the cache")

    def _sequence(self, sequence: int) -> int:
        return whole("sequence", sequence, 0, self.sequences - 1)

    def _place(self, sequence: int) -> tuple[int, int]:
        return (self._contexts[sequence], 0) if self.host.apart else (self._contexts[0], sequence)

    def _runs(self, ascending: list[int]) -> list[list[int]]:
        """Divide sequences into those that llama.cpp computes in one graph."""
        if self.host.apart:
            return [[one] for one in ascending]
        return _neighbours(ascending) if self.separate else [ascending]

    def _make(self, positions: int) -> list[int]:
        cached = CACHED * self.sequences if self.separate else CACHED
        contexts = self.sequences if self.host.apart else 1
        options = ContextOptions(
            positions=-(-positions // cached) * cached // contexts,
            batch=BATCH,
            graph=self.host.most_at_once(self.gguf, BATCH),
            sequences=self.sequences // contexts,
            threads=self.threads,
            separate=self.separate,
            hook=self._hook.address,
            state=self._hook.argument,
        )
        return [self._made(options) for _ in range(contexts)]

    def _made(self, options: ContextOptions) -> int:
        with self.host.messages() as lines:
            context: int | None = self._guarded(lambda: self.host.open(self._model, options))
        if not context:
            raise self._refused("; ".join(lines), f"a model that {self.host.name} runs")
        self._closing(_free_context, self.host, context, self._hook)
        if self._api.llama_pooling_type(context) > 0:
            raise self._refused("a model of embeddings", WITHOUT_RESULT_NORM)
        return context

    def _refuse_fault(self, rows: int, wanted: int) -> None:
        architecture = self.gguf.architecture
        if self._hook.fault == OTHER:
            got = f"result_norm of {architecture}, no float32 [rows, {self.gguf.dim}]"
            raise self._refused(got, WITHOUT_RESULT_NORM)
        if rows != wanted:
            got = f"{rows} rows of result_norm for {wanted} outputs ({architecture})"
            raise self._refused(got, WITHOUT_RESULT_NORM)

    def _probe(self) -> None:
        """Find out how llama.cpp applies the file's scale and cap.

        InvalidRequest if logits are not W h + b, or if tokens attend to later ones.
        """
        begin = max(self._api.llama_vocab_bos(self._vocabulary), 0)
        gguf, readings = self.gguf, self.gguf.readings()
        try:
            self._set_threads(1)
            self._guarded(lambda: self._replaced([(0, begin)], None))
            self._set_threads(self.threads)
            errors = []
            for gguf.scale, gguf.softcap in readings:
                try:
                    return compare_logits(gguf, self._replaced, begin, self.sequences)
                except OtherLogits as error:
                    errors.append(error)
            gguf.scale, gguf.softcap = readings[0]
            allowed = "a causal model whose logits are its output layer's"
            raise self._refused(f"{gguf.architecture}: {errors[0]}", allowed) from errors[0]
        finally:
            self.forget()

    def _replaced(
        self, tokens: Sequence[tuple[int, int]], given: Float32 | None
    ) -> tuple[Float32, Float32]:
        """Return the hidden states of all tokens, and their logits or those of `given` rows."""
        self.forget()
        hidden_states, logits = [], []
        for run in self._runs(sorted({sequence for sequence, _ in tokens})):
            part = [one for one in tokens if one[0] in run]
            context = self._fill(part, [True] * len(part))
            self._hook.begin(COPY if given is None else REPLACE, given)
            self._run(self._api, context)
            hidden_states.append(self._hook.rows())
            self._refuse_fault(len(hidden_states[-1]), len(part))
            logits.append(self._logits(context, range(len(part))))
        return np.concatenate(hidden_states), np.concatenate(logits)


def _neighbours(ascending: Sequence[int]) -> list[list[int]]:
    """Divide sequences into runs without gaps, which llama.cpp computes in one graph."""
    runs: list[list[int]] = []
    for sequence in ascending:
        if runs and runs[-1][-1] == sequence - 1:
            runs[-1].append(sequence)
        else:
            runs.append([sequence])
    return runs


def _free_context(host: Host, context: Any, hook: HiddenHook) -> None:
    """Free a context; the finalizer keeps `hook`, which the context calls, until then."""
    with host.messages():
        host.functions.llama_free(context)
