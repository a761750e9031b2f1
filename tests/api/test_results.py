import numpy as np
import pytest

from logitsieve.api.results import Answer, Provenance, TopK, TopKReply, rounded_down

PROVEN, SCANNED = np.array([True, False, True]), np.array([3, 5, 7], np.int32)
LEAST = float(np.finfo(np.float32).min)
TOP = TopK(np.zeros((3, 1), np.int32), np.zeros((3, 1), np.float32), PROVEN, SCANNED, ~PROVEN)


def test_an_answer_is_a_provenance_and_a_wrong_row_has_its_chance() -> None:
    first = Answer._fields.index("proven")
    assert Answer._fields[first : first + 4] == Provenance._fields
    assert Provenance._fields == (*TopK._fields[2:], "max_error")
    answer = Answer("lm", "1", "", "sketch", *TOP[2:], max_error=1e-15)
    assert answer.max_errors.tolist() == [0.0, 1e-15, 0.0]


def test_log_probs_are_rounded_down_and_need_a_log_z() -> None:
    answer = Answer("lm", "1", "", "full", *TOP[2:], max_error=0.0)
    with pytest.raises(ValueError, match="normalizer"):
        TopKReply(TOP.ids, TOP.logits, answer).log_probs()
    known = answer._replace(log_z=np.array([1, 2, 3], np.float32))
    assert TopKReply(TOP.ids, TOP.logits, known).log_probs().tolist() == [[-1], [-2], [-3]]
    logits = np.array([[3e38, 0, -3e38]], np.float32)
    answer = Answer("lm", "1", "", "full", PROVEN[:1], SCANNED[:1], PROVEN[:1], log_z=logits[:, 0])
    reply = TopKReply(np.arange(3, dtype=np.int32)[None], logits, answer)
    np.testing.assert_array_equal(reply.log_probs(), [[0, -logits[0, 0], -np.inf]])
    values = np.array([0.1, 0.5, -0.1, -0.0, LEAST, 1.0000001 * LEAST, -np.inf])
    down = rounded_down(values)
    assert (down <= values).all()
    assert (np.nextafter(down[:4], np.float32(np.inf)) > values[:4]).all()
    np.testing.assert_array_equal(down[4:], np.array([LEAST, -np.inf, -np.inf], np.float32))
