from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from benchmarks.race.judge import Judge
from benchmarks.race.methods import Method, best_ids
from benchmarks.race.peers import llama_cpp, onnx_runtime
from benchmarks.race.peers.centroid_head import balanced_clusters
from benchmarks.race.peers.faiss_refined import CODES, FaissRefined
from benchmarks.race.peers.int8_scan import Int8Scan
from benchmarks.race.peers.torch_int8 import TorchDynamic, TorchWeightOnly
from logitsieve.heads import Softmax
from tests.synthetic import make_hidden, make_softmax

SOFTMAX = make_softmax(1003, 72, seed=3)  # neither V nor D is a multiple of a vector
HIDDEN = make_hidden(300, 72, seed=4)
JUDGE = Judge(SOFTMAX, HIDDEN, (1, 5), lambda *_: None)

# The least P@1 and P@5 on logits of random words, and the most bytes for each number of W.
LLAMA_CPP = {"Q8_0": (0.97, 1.5), "Q6_K": (0.9, 3.1), "Q4_0": (0.7, 0.8)}
ONNX = {"int8": (0.97, 1.2), "8 bits": (0.97, 1.6), "4 bits": (0.7, 0.9)}
PEERS: dict[str, tuple[Callable[[Softmax], Method], float, float]] = {
    **{
        name: (partial(llama_cpp.LlamaCpp, form=name), *LLAMA_CPP[name])
        for name in llama_cpp.FORMATS
    },
    **{
        name: (partial(onnx_runtime.OnnxRuntime, stored=name), *ONNX[name])
        for name in onnx_runtime.STORED
    },
    "torch": (TorchDynamic, 0.96, 1.5),
    "torch, weights alone": (TorchWeightOnly, 0.96, 1.5),
    # Rescoring ends in the exact answer.
    "scan": (Int8Scan, 1.0, 1.5),
    "SQ8": (partial(FaissRefined, codes="SQ8"), 1.0, 1.5),
}


def peer_of(name: str, softmax: Softmax) -> Method:
    modules = {"xllamacpp": LLAMA_CPP, "onnx": ONNX, "onnxruntime": ONNX}
    for module, names in modules.items():
        if name in names:
            pytest.importorskip(module)
    return PEERS[name][0](softmax)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_is_as_precise_as_its_bits(name: str, threads: int) -> None:
    method, (_, least, most_bytes) = peer_of(name, SOFTMAX), PEERS[name]
    method.set_knobs(threads, method.settings[-1])
    for rows in (60, 1):
        starts = range(0, len(HIDDEN), rows)
        ids = np.concatenate([method.topk(HIDDEN[start : start + rows], 5) for start in starts])
        assert min(JUDGE.score(ids).precision().values()) >= least
    assert 0.5 * SOFTMAX.weight.size < method.nbytes < most_bytes * SOFTMAX.weight.size


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("bias", [0, 1])
def test_codes_of_faiss_find_what_is_rescored(codes: str, bias: int) -> None:
    softmax = Softmax(SOFTMAX.weight, bias * SOFTMAX.bias)
    peer = FaissRefined(softmax, codes)
    peer.set_knobs(2, peer.settings[-1])
    score = Judge(softmax, HIDDEN, (1, 5), lambda *_: None).score(peer.topk(HIDDEN, 5))
    assert score.precision()[1] >= 0.99
    assert score.hits[1].mean() == score.precision()[1]


@pytest.mark.parametrize("words", [5, 16, 17])
def test_the_scan_of_few_words_has_no_id_out_of_range(words: int) -> None:
    softmax = Softmax(SOFTMAX.weight[:words], np.full(words, -1e30, np.float32))
    method = Int8Scan(softmax)
    method.set_knobs(1, {"rescored": 40})
    ids = method.topk(HIDDEN[:1], 5)
    assert len(np.unique(ids)) == 5
    assert 0 <= ids.min() <= ids.max() < words


@pytest.mark.parametrize("name", PEERS)
def test_zero_rows_and_blocks_are_stored_as_zeros(name: str) -> None:
    weight = SOFTMAX.weight.copy()
    weight[7] = 0
    weight[8, :32] = 0
    softmax = Softmax(weight, np.where(np.arange(1003) == 7, 1e4, SOFTMAX.bias).astype(np.float32))
    peer = peer_of(name, softmax)
    peer.set_knobs(1, peer.settings[0])
    assert (peer.topk(HIDDEN, 5)[:, 0] == 7).all()


def test_clusters_are_balanced_and_complete() -> None:
    owner, means = balanced_clusters(SOFTMAX.weight, 50)
    counts = np.bincount(owner, minlength=21)
    assert len(means) == len(counts) == 21
    assert counts.max() == 50
    assert counts.sum() == 1003
    np.testing.assert_allclose(
        means[3], SOFTMAX.weight[owner == 3].mean(axis=0), rtol=1e-4, atol=1e-5
    )


def test_best_ids_are_those_of_a_sort() -> None:
    logits = HIDDEN @ SOFTMAX.weight.T
    np.testing.assert_array_equal(best_ids(logits, 5), np.argsort(-logits, axis=1)[:, :5])
