import numpy as np
import pytest

from benchmarks import timing


def test_the_pass_reads_as_many_bytes_as_it_says() -> None:
    timing.clear_cache()
    assert timing._other_work().nbytes == timing.CLEARED_BYTES
    assert timing._other_work().size % 64 == 0  # what `read_all` needs
    assert timing._other_work() is timing._other_work()


def test_other_work_is_not_part_of_a_cold_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0], []

    def spend(name: str, ns: int) -> None:
        order.append(name)
        now[0] += ns

    monkeypatch.setattr(timing, "clear_cache", lambda: spend("clear", 5000))
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: now[0])
    batches = [np.full((1, 2), each, np.float32) for each in (3, 5)]
    monkeypatch.setattr(timing, "COLD_CALLS", 2)
    mean = timing._cold_turn(
        lambda hidden_states, k: spend("call", k * int(hidden_states[0, 0])), batches, 10, 40, 0
    )
    assert mean == 40
    assert order == ["clear", "call", "clear", "call"]


@pytest.mark.parametrize("cold", [False, True])
def test_contenders_get_the_same_batches(cold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[int] = []
    monkeypatch.setattr(timing, "clear_cache", lambda: cleared.append(1))
    monkeypatch.setattr(timing, "TURN_NS", 100_000)
    seen: dict[str, set[float]] = {"a": set(), "b": set()}
    contenders = {
        name: lambda hidden_states, k, name=name: seen[name].add(float(hidden_states[0, 0]))
        for name in seen
    }
    hidden_states = np.arange(40, dtype=np.float32).reshape(20, 2)
    points = [lambda _, search=search: search for search in contenders.values()]
    us = timing.time_points(points, hidden_states, timing.Mode(2, 1, cold), 5)
    assert all(0 < each["least"] <= each["median"] for each in us)
    assert seen["a"] == seen["b"] == set(hidden_states[::2, 0].tolist())
    assert bool(cleared) == cold
