import inspect
import pickle
import re

import pytest

from logitsieve.api import errors
from logitsieve.api.errors import InvalidKnob, InvalidRequest, LogitsieveError, TargetNotReached

TREE = {
    name: found
    for name, found in vars(errors).items()
    if inspect.isclass(found) and issubclass(found, LogitsieveError)
}


def test_the_docstring_draws_the_tree() -> None:
    drawn: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([\s│├└─]*)([A-Z]\w+)", line)
        if match and match[2] in TREE:
            drawn.append((len(match[1]) // 4, match[2]))
    assert {name for _, name in drawn} == set(TREE)
    for place, (depth, name) in enumerate(drawn[1:], start=1):
        parent = next(other for level, other in reversed(drawn[:place]) if level < depth)
        assert TREE[name].__bases__[0].__name__ == parent


def test_messages_name_the_field_what_was_got_and_what_is_allowed() -> None:
    assert str(InvalidRequest("k", 0, "1 to 9")) == "k: got 0, allowed: 1 to 9"
    long = InvalidRequest("k", "a" * 500 + "b", "c" * 900)
    assert re.fullmatch(r"k: got a{40}\.\.\.a{39}b, allowed: c{98}\.\.\.c{98}", str(long))
    assert 290 < len(str(long)) <= 300
    assert (len(str(long.got)), len(long.allowed)) == (501, 900)
    assert len(str(InvalidRequest("k", "a" * 500, "less"))) in (299, 300)
    missed = str(TargetNotReached({"p1": 0.99}, {"p1": 0.5, "candidates": 12.0}))
    assert "p1=0.99" in missed
    assert "p1=0.5, candidates=12" in missed
    error = InvalidKnob.unknown("probs", 2.0, ("probes", "escalate"))
    assert str(error) == "knobs.probs: no such knob 'probs', there are: probes, escalate"
    assert (error.field, error.got, error.allowed) == ("knobs.probs", 2.0, "probes, escalate")
    assert str(InvalidKnob.unknown("x", 1, ())) == "knobs.x: no such knob 'x', there are: none"


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("k", 0, "1 to 9"),
        InvalidKnob.unknown("probs", 2.0, ("probes",)),
        TargetNotReached({"p1": 0.99}, {"p1": 0.5}),
        errors.IndexUnreadable("a/1", "missing"),
        errors.ShardUnavailable(256, 512),
        errors.DeadlineExceeded("late", "timeout"),
        errors.MissingExtra("torch", "builder"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_another_process_is_the_same(error: LogitsieveError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
