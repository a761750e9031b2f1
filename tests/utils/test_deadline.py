from threading import Thread
from time import monotonic

from logitsieve.utils.deadline import ending_by, time_left


def test_a_deadline_is_of_its_block_and_thread() -> None:
    assert time_left() is None
    with ending_by(monotonic() + 60):
        assert 0 < (time_left() or 0) <= 60
        with ending_by(None):
            assert time_left() is None
        assert time_left() is not None
        seen = list[float | None]()
        other = Thread(target=lambda: seen.append(time_left()))
        other.start()
        other.join()
        assert seen == [None]
    assert time_left() is None
    with ending_by(monotonic() - 1):
        assert (time_left() or 0) < 0
