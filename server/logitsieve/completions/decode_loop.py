"""One thread that decodes the prompts of all requests together.

In each turn it reads a slice of one prompt, so that a long one delays others by a slice, and makes
a token for each sequence that has read its prompt, by one call of the head.

The bits of a row depend on its request alone: a slice belongs to one sequence and begins at a
multiple of SLICE, caches are separate, and no more than `steady_sequences` share a step.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Condition, Thread
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from logitsieve.api.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    LogitsieveError,
    Overloaded,
    Unavailable,
)
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Float32, Int32
from logitsieve.api.watermark import WatermarkKey
from logitsieve.client.llamacpp import LlamaAttachment
from logitsieve.client.llamacpp_heads import Chosen, OutputHead, Scores
from logitsieve.client.llamacpp_sequences import (
    Continuation,
    Drafter,
    GenerationOptions,
    Speculation,
    choose,
)
from logitsieve.completions.journal import ENGINE, Journal
from logitsieve.llamacpp import LlamaContext

log = logging.getLogger(__name__)

SLICE = 64  # tokens; a divisor of LlamaContext's batch
PROBED = 8
RETRY_S = 1.0
STOP, LENGTH = "stop", "length"


class Scored(NamedTuple):
    id: int
    log_prob: float | None = None
    best: tuple[tuple[int, float], ...] = ()  # (id, log-probability)
    log_z: tuple[float, float] | None = None  # proven bounds


class Piece(NamedTuple):
    """News of a task: tokens, text that can no longer change, and at last why it ended."""

    tokens: list[Scored]
    text: str = ""
    finish: str = ""
    prompt: bool = False


@dataclass(eq=False, kw_only=True)
class Task:
    """A prompt to score or continue; `tell` is called on the engine's thread."""

    prompt: Sequence[int]
    options: GenerationOptions
    max_tokens: int  # 0: none
    drawing: Sampling | None
    echo: bool
    logprobs: int | None  # number of best ids with each token; None: no log-probabilities
    deadline: float
    tell: Callable[[Piece | Exception], None]
    request: int = 0  # its number in the journal
    cancelled: bool = False
    number: int = 0
    read: int = 0  # tokens of the prompt that have been read
    rows: Float32 | None = None  # [1, .] from which the next token is chosen
    made: Continuation | None = None
    speculation: Speculation | None = None
    scanned: int = 0
    chosen: int = 0  # tokens chosen or scored
    proven: int = 0
    heads: set[str] = field(default_factory=set)

    @property
    def scores_prompt(self) -> bool:
        return self.echo and self.logprobs is not None


class DecodeLoop:
    def __init__(
        self,
        attached: LlamaAttachment,
        *,
        waiting: int,
        widths: Mapping[bool, int] = MappingProxyType({False: 1, True: 1}),
        drafter: Callable[[], Drafter] | None = None,
        watermark: WatermarkKey | None = None,
        journal: Journal | None = None,
        before_turn: Callable[[], object] = lambda: None,
        head_name: Callable[[], str] = lambda: "",
    ) -> None:
        self.context: LlamaContext = attached.context
        self.running: list[Task] = []
        self.waiting: deque[Task] = deque()
        self.steps = 0
        self.prompt_tokens = self.tokens = self.scanned = self.drafted = self.accepted = 0
        self._attached, self._most_waiting, self._widths = attached, waiting, widths
        self._before_turn, self._head_name = before_turn, head_name
        self._drafter, self._watermark = drafter, watermark
        self._journal = journal or Journal()
        self._head: OutputHead = attached.head
        self._free = set(range(self.context.sequences))
        self._news = Condition()
        self._closing = self._draining = False
        self._thread = Thread(target=self._work, name="logitsieve-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, tasks: Sequence[Task]) -> None:
        with self._news:
            self.check(len(tasks))
            self.waiting.extend(tasks)
            self._news.notify()

    def check(self, count: int) -> None:
        """Raise Unavailable while draining, Overloaded or InvalidRequest for too many tasks."""
        if self._draining or self._closing:
            raise Unavailable("the server is stopping")
        if count > self._most_waiting:
            allowed = f"at most {self._most_waiting}, as many as may wait"
            raise InvalidRequest("n", f"{count} prompts times n", allowed)
        if len(self.waiting) + count > self._most_waiting:
            waiting = f"{len(self.waiting)} of {self._most_waiting} prompts are waiting"
            raise Overloaded(waiting, RETRY_S)

    def cancel(self, tasks: Sequence[Task]) -> None:
        with self._news:
            for task in tasks:
                task.cancelled = True
            self._news.notify()

    def drain(self) -> None:
        with self._news:
            self._draining = True

    def close(self) -> None:
        """End after the current turn, and tell the tasks that are left Unavailable."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread.ident is not None:
            self._thread.join()
        for task in [*self.running, *self.waiting]:
            task.tell(Unavailable("the server is stopping"))

    def _work(self) -> None:
        while True:
            with self._news:
                while not (self.running or self.waiting or self._closing):
                    self._news.wait()
                if self._closing:
                    return
            self.turn()

    def turn(self) -> None:
        """Read a slice of a prompt, and add a token to each sequence that has read its own."""
        self._before_turn()
        self._drop()
        self._admit()
        self._head = self._attached.head
        self.context.headless = self._head.headless
        reading = [task for task in self.running if task.made is None]
        if reading:
            with self._failing(reading[:1]):
                self._read(reading[0])
            if reading[0] in self.running:
                self.running.remove(reading[0])
                self.running.append(reading[0])
        ready = [task for task in self.running if task.made is not None]
        if ready:
            with self._failing(ready):
                if left := self._step(ready):
                    self._choose(left)

    @contextmanager
    def _failing(self, tasks: list[Task]) -> Iterator[None]:
        self.steps += 1
        try:
            with self._journal.doing(ENGINE, [task.request for task in tasks]):
                yield
        except Exception as error:
            told: LogitsieveError = InternalError("internal error")
            if isinstance(error, LogitsieveError):
                told = error
            else:
                log.error("the engine failed", exc_info=error)
            for task in tasks:
                self.end(task)
                task.tell(told)

    @contextmanager
    def _refusing(self, task: Task) -> Iterator[None]:
        """End only this task if its request is refused, such as by a limit of its grammar."""
        try:
            yield
        except InvalidRequest as error:
            self.end(task)
            task.tell(error)

    def _drop(self) -> None:
        now = monotonic()
        with self._news:
            every = [*self.running, *self.waiting]
        for task in every:
            if task.cancelled:
                self.end(task)
            elif now > task.deadline:
                self.end(task)
                task.tell(DeadlineExceeded("no answer within the server's time for a request"))

    def _admit(self) -> None:
        with self._news:
            while self._free and self.waiting:
                task = self.waiting.popleft()
                task.number = min(self._free)  # llama.cpp reads adjacent sequences together
                self._free.remove(task.number)
                self.context.forget(task.number)
                self.running.append(task)

    def end(self, task: Task) -> None:
        with self._news:
            if task in self.running:
                self.running.remove(task)
                self._free.add(task.number)
            elif task in self.waiting:
                self.waiting.remove(task)

    def _read(self, task: Task) -> None:
        start = task.read
        part = task.prompt[start : start + SLICE]
        rows = self.context.read(part, task.number, every=task.scores_prompt)
        task.read += len(part)
        self.prompt_tokens += len(part)
        tokens = [Scored(task.prompt[0])] if start == 0 else []
        following = task.prompt[start + 1 : start + 1 + len(part)]
        if task.scores_prompt and following:
            most = min(task.logprobs or 0, self.context.gguf.vocab_size)
            scores = self._head.scores(rows[: len(following)], following, most)
            self._count([task] * len(following), scores)
            tokens += _each(scores, following)
        elif not task.scores_prompt:
            tokens += [Scored(token) for token in following]
        done = task.read == len(task.prompt)
        finish = LENGTH if done and not task.max_tokens else ""
        if (task.echo and tokens) or finish:
            task.tell(Piece(tokens if task.echo else [], finish=finish, prompt=True))
        if finish:
            self.end(task)
        elif done:
            task.rows = rows[-1:]
            options = replace(task.options, watermark=self._watermark)
            task.made = Continuation(self.context, task.number, task.prompt, options, task.drawing)
            if self._drafter is not None:
                task.speculation = Speculation(self.context, task.made, self._drafter())

    def _step(self, tasks: list[Task]) -> list[Task]:
        """Read the last tokens; return the tasks that have not ended."""
        for task in tasks:
            if task.rows is None and task.speculation is not None:
                with self._refusing(task):
                    self._speculate(task, task.speculation)
        tasks = [task for task in tasks if task in self.running]
        due = sorted((task for task in tasks if task.rows is None), key=lambda task: task.number)
        width = self._widths[self.context.headless]
        for start in range(0, len(due), width):
            group = due[start : start + width]
            rows = self.context.step({task.number: _made(task).made[-1] for task in group})
            for task, row in zip(group, rows, strict=True):
                task.rows = row[None]
        return tasks

    def _choose(self, tasks: list[Task]) -> None:
        """Add a token to each task; if one is refused, try each alone, so that only it ends."""
        rows = np.concatenate([task.rows for task in tasks if task.rows is not None])
        try:
            chosen = choose(self._head, rows, [_made(task) for task in tasks])
            scores = self._scores(tasks, rows, chosen.ids)
        except InvalidRequest:
            if len(tasks) == 1:
                raise
            for task in tasks:
                with self._failing([task]):
                    self._choose([task])
            return
        self._count(tasks, chosen)
        self.tokens += len(tasks)
        ids = dict(zip(tasks, chosen.ids.tolist(), strict=True))
        told = {task: Scored(token) for task, token in ids.items()}
        for asked, found in scores:
            self._count(asked, found)
            told |= zip(asked, _each(found, [ids[task] for task in asked]), strict=True)
        for task, token in ids.items():
            with self._refusing(task):
                self._tell(task, token, told[task])

    def _scores(
        self, tasks: list[Task], rows: Float32, ids: Int32
    ) -> list[tuple[list[Task], Scores]]:
        scores = []
        # Only tasks with the same count share a call, so that each has the bits it has alone.
        for count in {task.logprobs for task in tasks} - {None}:
            asked = [place for place, task in enumerate(tasks) if task.logprobs == count]
            most = min(count or 0, self.context.gguf.vocab_size)
            found = self._head.scores(rows[asked], ids[asked].tolist(), most)
            scores.append(([tasks[place] for place in asked], found))
        return scores

    def _speculate(self, task: Task, ahead: Speculation) -> None:
        before = ahead.drafted, ahead.accepted
        task.rows = ahead.row()
        self.drafted += ahead.drafted - before[0]
        self.accepted += ahead.accepted - before[1]

    def _tell(self, task: Task, token: int, one: Scored) -> None:
        made = _made(task)
        text, task.rows = made.take(token), None
        full = LENGTH if len(made.made) >= task.max_tokens else ""
        if finish := STOP if made.over else full:
            text += made.rest()
            self.end(task)
        task.tell(Piece([one], text, finish))

    def _count(self, tasks: list[Task], found: Chosen | Scores) -> None:
        costs = zip(tasks, found.scanned.tolist(), found.proven.tolist(), strict=True)
        for task, scanned, proven in costs:
            task.scanned += scanned
            task.chosen += 1
            task.proven += proven
            task.heads.add(self._head_name())
            self.scanned += scanned


def _made(task: Task) -> Continuation:
    assert task.made is not None, "the prompt is read"
    return task.made


def _each(scores: Scores, ids: Sequence[int]) -> Iterator[Scored]:
    log_z = zip(scores.low.tolist(), scores.high.tolist(), strict=True)
    best = zip(scores.ids.tolist(), scores.best.tolist(), strict=True)
    rows = zip(ids, scores.log_probs.tolist(), best, log_z, strict=True)
    for token, log_prob, (best_ids, log_probs), (low, high) in rows:
        pairs = tuple(zip(best_ids, log_probs, strict=True))
        yield Scored(token, log_prob, pairs, (low, high) if low <= high else None)


def steady_sequences(context: LlamaContext) -> dict[bool, int]:
    """Return, by `headless`, how many sequences can share a step without other bits.

    For some types of tensors, llama.cpp has other kernels for more rows. Empties the cache.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, context.gguf.vocab_size, (context.sequences, PROBED + 1)).tolist()
    headless, counts = context.headless, {}
    context.forget()
    for number, (*prompt, _) in enumerate(tokens):
        context.read(prompt, number)
    for context.headless in (False, True):
        counts[context.headless] = _steady(context, [last for *_, last in tokens])
    # Logits may be the same although hidden_states have other bits.
    counts[False] = min(counts.values())
    context.forget()
    context.headless = headless
    return counts


def _steady(context: LlamaContext, tokens: Sequence[int]) -> int:
    """Return how many may share a step that reads `tokens`, one for each sequence."""
    order = np.random.default_rng(0)

    def rows(numbers: Sequence[int]) -> Float32:
        made = context.step({number: tokens[number] for number in numbers})
        for number in numbers:
            context.take_back(number)
        return made

    alone = np.concatenate([rows([number]) for number in range(context.sequences)])
    for count in range(2, context.sequences + 1):
        for numbers in (list(range(count)), order.permutation(context.sequences)[:count].tolist()):
            if not np.array_equal(rows(numbers), alone[numbers]):
                return count - 1
    return context.sequences
