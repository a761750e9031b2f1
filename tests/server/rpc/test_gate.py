"""New connections wait while a process has grown, and silent ones make room for others."""

from collections.abc import Collection
from dataclasses import dataclass, field

from logitsieve.server.rpc.gate import BURST, COUNT_S, GROWTH, HOLD_S, PATIENCE_S, SILENT_S, Gate
from logitsieve.server.rpc.own_process import Address, Connection

AT_REST = 10 * GROWTH
MOST = 80


ONE: Collection[Address] = ((7,),)


@dataclass
class Scripted:
    """A process with the memory and the files that it is told to have."""

    held: int = AT_REST
    freed: int = 0  # by the next trim
    open_files: int = 20
    refused: Collection[Address] | None = ()  # None: all
    connected: set[Address] | None = field(default_factory=lambda: set(ONE))  # None: not told
    closed: bool = False
    open: list[Connection] = field(default_factory=list)

    def memory(self) -> int:
        return self.held

    def trim(self) -> None:
        self.held, self.freed = self.held - self.freed, 0

    @property
    def refusing(self) -> bool:
        return self.refused != ()

    def refuse(self, addresses: Collection[Address] | None = None) -> None:
        self.refused = addresses

    def admit(self) -> None:
        assert self.refusing  # or the kernel has no filter to remove
        self.refused = ()

    def addresses(self) -> set[Address]:
        assert self.refused is None  # it takes time in which more could come
        if self.connected is None:
            raise OSError("no such table")
        return self.connected

    def files(self) -> int:
        return self.open_files

    def connections(self) -> list[Connection]:
        return list(self.open)

    def cut(self, peers: set[str]) -> None:
        self.open = [each for each in self.open if each.peer not in peers]

    def close(self) -> None:
        self.closed = True


def test_it_closes_when_memory_has_grown_and_opens_when_it_has_come_back() -> None:
    process = Scripted()
    gate = Gate(process, MOST)
    process.held = AT_REST + GROWTH
    gate.look(0.0)
    assert not process.refusing
    process.held, process.freed = AT_REST + 2 * GROWTH, 2 * GROWTH
    gate.look(1.0)
    assert process.refusing
    gate.look(1.0 + HOLD_S / 2)
    assert process.freed  # calls that wait hold it still
    gate.look(1.0 + HOLD_S)
    assert not process.refusing


def test_who_is_not_connected_is_let_in_until_memory_has_grown_as_much_again() -> None:
    process = Scripted()
    gate = Gate(process, MOST)
    for now, growth, refused in (
        (0.0, 1.5, {(7,)}),
        (0.1, 1.9, {(7,)}),
        (0.2, 2.1, None),
        (0.2 + HOLD_S, 1.5, None),
        (0.2 + 2 * HOLD_S, 0.0, ()),
        (5.0, 1.5, {(7,)}),
    ):
        process.held = AT_REST + int(growth * GROWTH)
        gate.look(now)
        assert process.refused == refused


def test_connections_that_come_all_at_once_close_it_to_all() -> None:
    process = Scripted()
    gate = Gate(process, MOST)
    gate.look(0.0)
    for refused in ({(7,)}, None, None):
        process.open_files += BURST + 1
        gate.look(0.5 * COUNT_S)
        assert process.refused == refused


def test_it_closes_to_all_where_the_kernel_does_not_tell_who_is_connected() -> None:
    process = Scripted(connected=None)
    gate = Gate(process, MOST)
    process.held += 2 * GROWTH
    gate.look(0.0)
    assert process.refused is None


def test_memory_that_does_not_come_back_is_the_servers_own_in_the_end() -> None:
    process = Scripted()
    gate = Gate(process, MOST)
    process.held = AT_REST + 2 * GROWTH
    for now in (0.0, HOLD_S, PATIENCE_S - 0.1):
        gate.look(now)
        assert process.refusing
    gate.look(PATIENCE_S + HOLD_S)
    gate.look(PATIENCE_S + HOLD_S)
    assert not process.refusing
    process.held += GROWTH
    gate.look(PATIENCE_S + HOLD_S)
    assert process.refusing


def test_counted_messages_and_loaded_versions_are_no_growth() -> None:
    process = Scripted()
    gate = Gate(process, MOST, lambda: 2 * GROWTH)
    process.held += 3 * GROWTH
    gate.look(0.0)
    assert not process.refusing
    process.held += 3 * GROWTH
    gate.settle()
    gate.look(0.0)
    assert not process.refusing


def test_connections_that_come_all_at_once_wait_but_for_a_number_of_them() -> None:
    process = Scripted()
    gate = Gate(process, MOST, others=lambda: 5)
    process.open_files += BURST
    gate.look(0.0)
    gate.look(COUNT_S)
    process.open_files += BURST
    gate.look(COUNT_S)
    assert not process.refusing
    process.open_files += 1
    gate.look(1.5 * COUNT_S)
    assert process.refusing
    gate.look(1.5 * COUNT_S + HOLD_S)
    process.open_files += BURST
    gate.look(1.5 * COUNT_S + HOLD_S)
    assert not process.refusing


def test_those_silent_longest_make_room_at_a_port_that_is_nearly_full() -> None:
    silent = [Connection(1, f"ipv4:10.0.0.7:{n}", SILENT_S + n) for n in range(MOST)]
    busy = [Connection(2, f"ipv4:10.0.0.8:{n}", SILENT_S / 2) for n in range(MOST)]
    process = Scripted(open=[*silent, *busy], open_files=MOST)
    Gate(process, MOST).look(0.0)
    assert process.open == [*silent[: MOST - MOST // 8], *busy]
    process = Scripted(open=silent, open_files=MOST // 2)
    Gate(process, MOST).look(0.0)
    assert process.open == silent


def test_an_ended_gate_leaves_the_ports_open() -> None:
    for grown in (0, 2 * GROWTH):
        process = Scripted()
        gate = Gate(process, MOST)
        process.held += grown
        gate.look(0.0)
        gate.start()
        gate.stop()
        assert (process.refusing, process.closed) == (False, True)
