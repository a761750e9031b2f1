"""Calls of one TopK server by plain HTTP/2: an arrival costs some 20 us, a tenth of gRPC's client.

A client of gRPC in Python makes hardly as many calls as a server answers on an equal core, so it
cannot offer several times that. This one writes frames that were made beforehand, and reads no
more of a reply than its status and its wait. It keeps to the server's limit on streams, lets calls
wait for one in order, and cancels those whose time is up, as gRPC's own client does.

A process of its own: `python -m benchmarks.load.wire` reads a Plan as JSON from stdin and writes
a Result as JSON to stdout.
"""

import selectors
import socket
import struct
from collections import defaultdict, deque
from dataclasses import dataclass
from time import perf_counter

import grpc

from benchmarks.load.clients import CHANNELS, LOCAL, Plan, Result, answer, requests, result_of
from logitsieve.api.errors import Overloaded
from logitsieve.client.connection import MARK, Throttle
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TIMEOUT

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
STREAMS, FIRST_WINDOW, FRAME = 3, 65_535, 16_384  # a setting; HTTP/2's defaults
STATUS, PUSHBACK = b"\x0bgrpc-status", b"grpc-retry-pushback-ms"
CODES = {str(code.value[0]).encode(): code.name for code in grpc.StatusCode}


@dataclass(slots=True)
class Call:
    """A call that was due at `due`, on stream `stream` once it has been sent."""

    due: float
    body: bytes
    stream: int = 0
    ended: bool = False
    queue_ns: int = 0


class Wire:
    """A connection; `send` what fits its window and streams, `ended` yields (call, code)."""

    def __init__(self, address: str, timeout_s: float) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = _head(address, round(timeout_s * 1000))
        self._next, self._most, self._window = 1, 1 << 31, FIRST_WINDOW
        self._open: dict[int, Call] = {}
        self.waiting: deque[Call] = deque()
        self._in = bytearray()
        # No table of headers: then a status is always spelled out.
        settings = struct.pack(">HIHI", 1, 0, 4, 1 << 24)
        self._out = bytearray(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._out += _frame(SETTINGS, 0, 0, settings)
        self._out += _frame(WINDOW, 0, 0, struct.pack(">I", 1 << 30))
        self.socket.setblocking(False)

    def cancel(self, call: Call) -> None:
        if self._open.pop(call.stream, None):
            self._out += _frame(RESET, 0, call.stream, struct.pack(">I", 8))

    def send(self) -> None:
        while self.waiting and len(self._open) < self._most:
            call = self.waiting[0]
            if not call.ended:
                if len(call.body) > self._window:
                    break
                self._start(call)
            self.waiting.popleft()
        if self._out:
            try:
                del self._out[: self.socket.send(self._out)]
            except BlockingIOError:
                return

    def ended(self) -> list[tuple[Call, str]]:
        """Read the bytes that have arrived."""
        if not (came := self.socket.recv(1 << 18)):
            raise ConnectionError("the server closed a connection")
        self._in += came
        found, at = [], 0
        while len(self._in) - at >= 9:
            high, low, kind, flags, stream = struct.unpack_from(">BHBBI", self._in, at)
            size = high << 16 | low
            if len(self._in) - at < 9 + size:
                break
            load = bytes(self._in[at + 9 : at + 9 + size])
            at += 9 + size
            if code := self._heard(kind, flags, stream, load):
                found.append((self._open.pop(stream), code))
        del self._in[:at]
        return found

    def _start(self, call: Call) -> None:
        call.stream, self._next = self._next, self._next + 2
        self._open[call.stream] = call
        self._window -= len(call.body)
        self._out += _frame(HEADERS, END_HEADERS, call.stream, self._head)
        for at in range(0, len(call.body), FRAME):
            last = END_STREAM if at + FRAME >= len(call.body) else 0
            self._out += _frame(DATA, last, call.stream, call.body[at : at + FRAME])

    def _heard(self, kind: int, flags: int, stream: int, load: bytes) -> str:
        """Return the code that ends an open stream, or ""."""
        if kind == SETTINGS and not flags & ACK:
            self._most = dict(struct.iter_unpack(">HI", load)).get(STREAMS, self._most)
            self._out += _frame(SETTINGS, ACK, 0, b"")
        elif kind == PING and not flags & ACK:
            self._out += _frame(PING, ACK, 0, load)
        elif kind == WINDOW and not stream:
            self._window += struct.unpack(">I", load)[0]
        elif stream in self._open and kind == RESET:
            return f"RESET {int.from_bytes(load)}"
        elif stream in self._open and kind == DATA and load:  # a reply fits one frame
            self._open[stream].queue_ns = pb.TopKResponse.FromString(load[5:]).answer.queue_ns
        elif stream in self._open and kind == HEADERS and flags & END_STREAM:
            at = load.index(STATUS) + len(STATUS)
            code = CODES[load[at + 1 : at + 1 + load[at]]]
            unhelpful = code == "RESOURCE_EXHAUSTED" and PUSHBACK not in load
            return f"{code} without pushback" if unhelpful else code
        return ""


def run(plan: Plan) -> Result:
    wires = [Wire(plan.address, plan.timeout_s) for _ in range(CHANNELS)]
    bodies = [b"\0" + struct.pack(">I", len(each)) + each for each in requests(plan)]
    throttle = Throttle() if plan.throttled else None
    selector = selectors.DefaultSelector()
    for wire in wires:
        selector.register(wire.socket, selectors.EVENT_READ, wire)
    begun = perf_counter()
    first, last = begun + plan.warm_s, begun + plan.warm_s + plan.seconds
    taken: dict[str, list[float]] = defaultdict(list)
    expiring: deque[tuple[Wire, Call]] = deque()
    number = running = 0

    def end(call: Call, code: str) -> None:
        nonlocal running
        call.ended, now = True, perf_counter()
        running -= 1
        if throttle is not None and code != LOCAL:
            waited = call.queue_ns > MARK * plan.timeout_s * 1e9
            throttle.leave(waited or code in {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})
        if first <= now < last:
            taken[code].append((now - call.due) * 1e6)

    while (now := perf_counter()) < last:
        due = begun + number / plan.per_s if plan.per_s else now
        while due <= now if plan.per_s else running < plan.clients:
            wire, call = wires[number % CHANNELS], Call(due, bodies[number % len(bodies)])
            number, running = number + 1, running + 1
            due = begun + number / plan.per_s if plan.per_s else now
            try:
                if throttle is not None:
                    throttle.enter()
            except Overloaded:
                end(call, LOCAL)
                continue
            expiring.append((wire, call))
            wire.waiting.append(call)
        while expiring and (expiring[0][1].ended or expiring[0][1].due + plan.timeout_s <= now):
            wire, call = expiring.popleft()
            if not call.ended:
                wire.cancel(call)
                end(call, "DEADLINE_EXCEEDED")
        for wire in wires:
            wire.send()
        pause = min(due - perf_counter(), 0.001) if plan.per_s else 0.001
        for key, _ in selector.select(max(0.0, pause)):
            for call, code in key.data.ended():
                late = perf_counter() - call.due > plan.timeout_s
                end(call, "DEADLINE_EXCEEDED" if late else code)
    for wire in wires:
        wire.socket.close()
    return result_of(plan, taken)


def _frame(kind: int, flags: int, stream: int, load: bytes) -> bytes:
    return struct.pack(">BHBBI", len(load) >> 16, len(load) & 0xFFFF, kind, flags, stream) + load


def _head(address: str, timeout_ms: int) -> bytes:
    """Headers in HPACK's literal form; short names and values only."""
    named = {
        b":path": b"/logitsieve.v1.Decoder/TopK",
        b":authority": address.encode(),
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        b"grpc-timeout": b"%dm" % timeout_ms,
        TIMEOUT.encode(): b"%d" % timeout_ms,
    }
    literals = (bytes((0, len(name))) + name + bytes((len(v),)) + v for name, v in named.items())
    return b"\x83\x86" + b"".join(literals)  # POST, http


if __name__ == "__main__":
    answer(run)
