import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.synthetic import make_softmax, write_heads


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalDecoder, LocalDecoder]:
    """Decoders over one index of V = 260, D = 12, on a GPU and on the host."""
    out = tmp_path_factory.mktemp("gpu") / "lm" / "1"
    path = write_heads(out, make_softmax(260, 12), "screen", "sketch")
    return LocalDecoder(open_index(path, device="cuda")), LocalDecoder(open_index(path))
