from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

import grpc

from logitsieve.api.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from logitsieve.server.logs import event
from logitsieve.server.rpc.own_process import cut

log = logging.getLogger(__name__)

COPIES = 2  # of a message: gRPC's bytes, and ours or arrays
MOST_WAITING = 1000  # calls that wait to be read; gRPC holds about 64 KiB of each
OF_CONNECTION, OF_ADDRESS = 0.25, 0.5  # largest shares of the memory
UNPROVEN = 0.75  # of all memory, and of an address's share: for connections without a message yet
MOST_REMEMBERED = 1000
RETRY_S = 0.1
WAIT_S = 10.0
MESSAGE_S = 10.0
REPLY_S = 10.0  # for the client to read a reply; then its connection is cut
QUICK_S = 0.5  # while calls wait, messages that take longer get at most half of the memory
QUICK_REPLIES = 4  # the same for replies that take QUICK_REPLIES * QUICK_S

Turn = tuple["Held", "asyncio.Future[None]"]


class Intake:
    """Lets a port's calls be read while their messages and replies fit into `most` bytes.

    Further calls wait unread. The connection with the fewest waiting calls is next; connections
    that did not send their last message come last. A limit by shares never excludes the first
    message of a connection or address. A unary call counts `longest` bytes until it has been read;
    a stream's message counts once read. Both include the largest `reply` until its size is known.
    Each byte counts COPIES times.
    """

    def __init__(
        self,
        most: int,
        longest: int,
        reply: int = 0,
        message_s: float = MESSAGE_S,
        quick_s: float = QUICK_S,
        reply_s: float = REPLY_S,
        wait_s: float = WAIT_S,
        cut: Callable[[set[str]], object] = cut,
    ) -> None:
        self._most, self._longest, self._reply = most // COPIES, longest, reply
        self._message_s, self._quick_s, self._reply_s = message_s, quick_s, reply_s
        self._wait_s, self._cut = wait_s, cut
        self._turns: dict[str, deque[Turn]] = {}  # waiting calls by connection
        self._reading: dict[Held, asyncio.Task[Any]] = {}
        self._replying: dict[Held, None] = {}
        self._sweeping = False
        self._of: dict[str, int] = {}
        self._brings: dict[str, bool] = {}  # by connection: whether its last message came
        self.bytes = 0
        self.waiting = 0
        self.calls = 0  # calls and stream messages that wait or have been let in

    async def message(self, context: Any) -> tuple[bytes, Held]:
        """Read the message of a unary call, and count it until the call ends.

        Overloaded if no memory is free in time, DeadlineExceeded if the message comes too late.
        """
        peer = context.peer()
        held = await self.enter(self._longest, peer, self._brings.get(peer, False))
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(partial(self.leave, held))
        held.since_ns = perf_counter_ns()
        self._reading[held] = task
        if not self._sweeping:
            self._sweep_soon()
        try:
            message = await context.read()
        except asyncio.CancelledError:
            if held.ended is None:
                raise
            task.uncancel()
            self._remember(peer, False)
            raise held.ended from None
        finally:
            del self._reading[held]
        if message is grpc.aio.EOF:
            raise InvalidRequest("request", "nothing", "a message")
        if not self._brings.get(peer):
            self._remember(peer, True)
            self._count(held, -held.size)
            held.prove()
            self._count(held, held.size)
        return bytes(message), held

    async def enter(self, size: int, peer: str, proven: bool = True) -> Held:
        """Wait until a message of this connection fits, then count it until `leave`."""
        held = Held(self, size + self._reply, peer, address_of(peer), proven)
        self.calls += 1
        try:
            if self.waiting or not self._fits(held):
                await self._turn(held)
            else:
                self._count(held, held.size)
        except BaseException:
            self.calls -= 1
            raise
        return held

    def reply(self, held: Held) -> None:
        held.since_ns = perf_counter_ns()
        self._replying[held] = None
        if not self._sweeping:
            self._sweep_soon()

    def leave(self, held: Held, call: object = None) -> None:
        self.calls -= 1
        self._replying.pop(held, None)
        self.free(held, held.size)

    def free(self, held: Held, size: int) -> None:
        self._count(held, -size)
        while self._turns and (peer := self._next()) is not None:
            turns = self._turns.pop(peer)
            held, turn = turns.popleft()
            if turns:
                self._turns[peer] = turns
            if not turn.done():
                self._count(held, held.size)
                turn.set_result(None)

    async def _turn(self, held: Held) -> None:
        self._make_room(held)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(held.peer, deque()).append((held, turn))
        self.waiting += 1
        held.since_ns = began = perf_counter_ns()
        if self._is_fair(held):  # the others may be waiting only because of their own shares
            self.free(held, 0)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except Overloaded:  # `_make_room` has taken it out of its queue
            raise
        except BaseException as error:
            self.free(held, held.size if turn.done() and not _failed(turn) else 0)
            if isinstance(error, TimeoutError):
                message = f"no memory for the request became free within {self._wait_s:g} s"
                raise Overloaded(message, RETRY_S) from None
            raise
        finally:
            self.waiting -= 1
            held.waited_ns = perf_counter_ns() - began

    def _make_room(self, new: Held) -> None:
        """If too many calls wait, refuse one of the connection with the most waiting calls.

        Overloaded if that would leave it fewer than the connection of the `new` call.
        """
        of_address = {
            peer: turns for peer, turns in self._turns.items() if turns[0][0].address == new.address
        }
        if self.waiting >= MOST_WAITING:
            crowd = self._turns
        elif sum(map(len, of_address.values())) >= MOST_WAITING * OF_ADDRESS:
            crowd = of_address
        else:
            return
        refused = Overloaded(f"{self.waiting} calls wait to be read", RETRY_S)
        peer = max(crowd, key=lambda peer: len(crowd[peer]), default=new.peer)
        if len(self._turns.get(peer, ())) <= len(self._turns.get(new.peer, ())) + 1:
            raise refused
        _, turn = self._turns[peer].pop()
        if not turn.done():
            turn.set_exception(refused)

    def _remember(self, peer: str, brings: bool) -> None:
        self._brings[peer] = brings
        if len(self._brings) > MOST_REMEMBERED:
            del self._brings[next(iter(self._brings))]

    def _next(self) -> str | None:
        """Return the connection whose turn it is, if its oldest call fits or was given up."""
        oldest = ((peer, *turns[0]) for peer, turns in self._turns.items())
        peers = (peer for peer, held, turn in oldest if turn.done() or self._is_fair(held))
        peer = min(peers, key=self._order, default=None)
        if peer is None:
            return None
        held, turn = self._turns[peer][0]
        return peer if turn.done() or self._fits(held) else None

    def _order(self, peer: str) -> tuple[bool, int, int]:
        """Rank connections. A new connection does not wait for those that came before it."""
        turns, brings = self._turns[peer], self._brings.get(peer)
        newest = -turns[0][0].since_ns if brings is None else 0
        return brings is False, len(turns), newest

    def _fits(self, held: Held) -> bool:
        if not self.bytes:
            return True
        return self.bytes + held.size <= self._most and self._is_fair(held)

    def _is_fair(self, held: Held) -> bool:
        for key, share in held.limits:
            if (used := self._of.get(key, 0)) and used + held.size > self._most * share:
                return False
        return True

    def _count(self, held: Held, size: int) -> None:
        self.bytes += size
        for key, _ in held.limits:
            if used := self._of.get(key, 0) + size:
                self._of[key] = used
            else:
                self._of.pop(key, None)

    def _sweep_soon(self) -> None:
        self._sweeping = bool(self._reading or self._replying)
        if self._sweeping:
            asyncio.get_running_loop().call_later(self._quick_s / 2, self.sweep)

    def give_up(self) -> None:
        for held, task in self._reading.items():
            held.ended = unread()
            task.cancel()
        for turns in self._turns.values():
            for _, turn in turns:
                if not turn.done():
                    turn.set_exception(unread())

    def sweep(self) -> None:
        """Stop reading late messages, and cut connections that do not read their replies.

        While calls wait for memory, slow messages and replies may hold half of it.
        """
        now, slow, stuck = perf_counter_ns(), defaultdict[str, int](int), set[str]()
        for held, task in self._reading.items():
            read_s = (now - held.since_ns) * 1e-9
            if read_s < self._quick_s:
                break
            if read_s >= self._message_s:
                held.ended = DeadlineExceeded(f"no message came within {self._message_s:g} s")
            elif self._is_too_much(slow, held):
                held.ended = Overloaded("the message is slow, and others wait for memory", RETRY_S)
            else:
                continue
            task.cancel()
        for held in self._replying:
            sent_s = (now - held.since_ns) * 1e-9
            if sent_s < QUICK_REPLIES * self._quick_s:
                break
            if self._is_too_much(slow, held) or sent_s >= self._reply_s:
                stuck.add(held.peer)
        if stuck:
            message = f"{len(stuck)} connections cut: they do not take their replies"
            event(log, logging.WARNING, "cut", message, connections=len(stuck))
            self._cut(stuck)
        self._sweep_soon()

    def _is_too_much(self, slow: defaultdict[str, int], held: Held) -> bool:
        """Return whether calls wait and `slow` bytes are too many; if not, add those of `held`."""
        in_all, of_address = slow[""] + held.size, slow[held.address] + held.size
        half = self._most // 2
        if self.waiting and (in_all > half or of_address > half * OF_ADDRESS):
            return True
        slow[""], slow[held.address] = in_all, of_address
        return False


@dataclass(slots=True, eq=False)
class Held:
    intake: Intake
    size: int
    peer: str
    address: str
    proven: bool = True  # its connection has brought a message
    limits: tuple[tuple[str, float], ...] = ()  # keys, and the share of the memory that each has
    since_ns: int = 0
    waited_ns: int = 0
    ended: Exception | None = None

    def __post_init__(self) -> None:
        self.limits = (self.peer, OF_CONNECTION), (self.address, OF_ADDRESS)
        if not self.proven:
            self.limits += (
                (f"unproven {self.address}", OF_ADDRESS * UNPROVEN),
                ("unproven", UNPROVEN),
            )

    def prove(self) -> None:

        self.limits = self.limits[:2]

    def shrink(self, size: int) -> None:
        if (rest := self.size - size) > 0:
            self.size = size
            self.intake.free(self, rest)


class Arrived:
    """gRPC's context of a call that was let in, with the bytes that its intake counts.

    `check_key` raises a ServiceError once the API key of a stream is no longer valid.
    """

    def __init__(
        self,
        context: Any,
        intake: Intake,
        held: Held | None = None,
        check_key: Callable[[], None] = lambda: None,
    ) -> None:
        self._context, self.intake, self.held, self.check_key = context, intake, held, check_key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def unread() -> Unavailable:
    return Unavailable("the server is stopping, and the message has not come")


def _failed(turn: asyncio.Future[None]) -> bool:
    return turn.cancelled() or turn.exception() is not None


def address_of(peer: str) -> str:
    """Return a connection's address, without its port: ipv4:10.0.0.7 of ipv4:10.0.0.7:1234."""
    return peer.rpartition(":")[0]
