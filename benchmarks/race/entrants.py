"""The methods that race on a dataset, with the build knobs to try."""

from collections.abc import Iterator, Sequence
from functools import cache as cached
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from benchmarks.llamacpp.builds import more_than_avx2
from benchmarks.race.datasets import Dataset
from benchmarks.race.methods import Entrant
from benchmarks.race.ours import FGD, LSH_BITS, LSH_MIPS, fgd, lsh_mips, of_indexes
from benchmarks.race.peers.adaptive_softmax import AdaptiveSoftmax, label
from benchmarks.race.peers.centroid_head import CentroidHead
from benchmarks.race.peers.exact import MAKERS, ExactPeer
from benchmarks.race.peers.faiss_panorama import FaissPanorama
from benchmarks.race.peers.faiss_refined import CODES, FaissRefined
from benchmarks.race.peers.greedy_mips import GreedyMips
from benchmarks.race.peers.hnsw import Hnswlib
from benchmarks.race.peers.int8_scan import Int8Scan
from benchmarks.race.peers.llama_cpp import BLOCK, FORMATS, LlamaCpp
from benchmarks.race.peers.onnx_runtime import STORED, OnnxRuntime
from benchmarks.race.peers.pca_tree import PcaTree
from benchmarks.race.peers.scann import Scann
from benchmarks.race.peers.torch_int8 import TorchDynamic, TorchWeightOnly
from benchmarks.raw import GRADED
from logitsieve.heads import HEADS, Softmax
from logitsieve.index_builder.fitting import SKETCH
from logitsieve.llamacpp import OutputMatrix
from logitsieve.utils.options import Progress

LEVELS = (4, 8, 16)  # of Panorama
FIRST_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)  # of V, adaptive softmax's first level
SMALL = 20_000_000  # numbers of W up to which every build knob is tried, graphs the largest
LIBRARIES = ("numpy", "torch", "faiss-cpu", "numba", "hnswlib", "scann", "xllamacpp", "onnxruntime")


def entrants(
    data: Dataset, threads: Sequence[int], rebuild: bool, only: Sequence[str], progress: Progress
) -> Iterator[Entrant]:
    """Yield exact searches, then the registry's heads, then the peers; `only` has parts of names.

    What is not asked for costs nothing: no index is built, no label computed.
    """
    softmax = data.softmax
    for name in MAKERS:
        yield Entrant(name, partial(ExactPeer, name, softmax))
    yield from quantised(softmax, data.stored)
    labels = {name: [name] for name in HEADS} | {SKETCH: [*GRADED]}
    heads = [
        name
        for name, own in labels.items()
        if any(wanted(f"logitsieve {label}", only) for label in own)
    ]
    yield from of_indexes(data, threads, heads, rebuild, progress)
    yield Entrant(CentroidHead.name, partial(CentroidHead, softmax))
    large = softmax.weight.size > SMALL
    for levels in LEVELS[1:2] if large else LEVELS:
        yield Entrant(FaissPanorama.name, partial(FaissPanorama, softmax, levels))
    for peer in (GreedyMips, PcaTree):
        yield Entrant(peer.name, partial(peer, softmax))
    for bits in LSH_BITS:
        yield Entrant(LSH_MIPS, partial(lsh_mips, softmax, bits, threads))
    labelled = cached(lambda: label(softmax, data.fit))
    yield Entrant(FGD, partial(fgd, softmax, lambda: labelled()[1], threads))
    for share in FIRST_SHARES[::2] if large else FIRST_SHARES:
        first = max(16, round(share * softmax.vocab_size))
        made = partial(lambda first: AdaptiveSoftmax(softmax, labelled(), first), first)
        yield Entrant(AdaptiveSoftmax.name, made)
    knobs = {"edges": 16, "construction": 100} if large else {}
    for space in ("l2",) if large else ("ip", "l2"):
        yield Entrant(f"hnswlib {space}", partial(Hnswlib, softmax, space, **knobs))
    for tree in (False, True):
        yield Entrant(Scann.name, partial(Scann, softmax, tree))


def quantised(softmax: Softmax, stored: OutputMatrix | None = None) -> Iterator[Entrant]:
    """Yield dense heads of few bits: llama.cpp's of the rows as they are stored, or of each type.

    Q6_K takes part where llama.cpp has it for this width.
    """
    if stored is not None:
        own = partial(LlamaCpp, softmax, stored.kind, stored)
        yield Entrant(f"llama.cpp {stored.kind}", own)
        if more_than_avx2():
            yield Entrant(f"llama.cpp {stored.kind}, native", partial(own, native=True))
    else:
        for kind, (_, block) in FORMATS.items():
            if block == BLOCK or softmax.dim % block == 0:
                yield Entrant(f"llama.cpp {kind}", partial(LlamaCpp, softmax, kind))
    for kind in STORED:
        yield Entrant(f"onnxruntime {kind}", partial(OnnxRuntime, softmax, kind))
    for peer in (TorchDynamic, TorchWeightOnly, Int8Scan):
        yield Entrant(peer.name, partial(peer, softmax))
    for codes in CODES:
        yield Entrant(f"faiss {codes}, refined", partial(FaissRefined, softmax, codes))


def wanted(name: str, only: Sequence[str]) -> bool:
    """True if `only` is empty or has a part of the name."""
    return not only or any(part in name for part in only)


def versions() -> dict[str, str]:
    """Versions of the libraries that race; "absent" for those that are not installed."""
    found = {}
    for package in LIBRARIES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found
