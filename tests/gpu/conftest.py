import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import HeadEntry, open_index, write_index
from tests.synthetic import ARRAYS, make_softmax


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalDecoder, LocalDecoder]:
    """Decoders over one index of V = 260, D = 12, on a GPU and on the host."""
    softmax = make_softmax(260, 12)
    parts = {"sketch": ARRAYS["certified"](softmax), "screen": ARRAYS["screen"](softmax)}
    heads = {"exact": HeadEntry(), "certified": HeadEntry("sketch"), "screen": HeadEntry("screen")}
    path = tmp_path_factory.mktemp("gpu") / "lm" / "1"
    write_index(path, softmax=softmax, parts=parts, heads=heads, default_head="screen")
    return LocalDecoder(open_index(path, device="cuda")), LocalDecoder(open_index(path))
