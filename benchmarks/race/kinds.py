"""Kinds of contenders: by what they read of W, and in which numbers."""

DENSE = "dense float32"
HALF = "dense bfloat16"
QUANTISED = "dense quantised"
RESCORED = "dense quantised, rescored"

_NAMES = {
    DENSE: ("numpy", "torch", "faiss IndexFlatIP", "logitsieve exact"),
    HALF: ("torch bfloat16",),
    QUANTISED: (
        "llama.cpp Q8_0",
        "llama.cpp Q8_0, native",
        "llama.cpp Q6_K",
        "llama.cpp Q4_0",
        "onnxruntime int8",
        "onnxruntime 8 bits",
        "onnxruntime 4 bits",
        "torch dynamic int8",
        "torch weight-only int8",
    ),
    RESCORED: (
        "int8 scan, rescored",
        "faiss SQ8, refined",
        "faiss RaBitQ 1 bit, refined",
        "faiss RaBitQ 4 bits, refined",
        "faiss PQ fast scan, refined",
    ),
    "exact by bounds": ("logitsieve certified", "faiss IndexFlatIPPanorama"),
    "bounds that may fail": ("logitsieve assured", "logitsieve estimated"),
    "lists by context": ("logitsieve screen", "logitsieve frequency"),
    "clusters of words": ("logitsieve ivf", "centroids of 128 words"),
    "low rank": ("logitsieve svd", "adaptive softmax"),
    "approximate search": (
        "logitsieve lsh",
        "logitsieve graph",
        "FGD",
        "LSH-MIPS",
        "greedy-MIPS",
        "PCA-tree MIPS",
        "hnswlib ip",
        "hnswlib l2",
        "ScaNN",
    ),
}
KINDS = {name: kind for kind, names in _NAMES.items() for name in names}  # of each contender


def is_narrow(name: str) -> bool:
    """True for a head that multiplies all of W, in fewer bits than 32."""
    return KINDS.get(name) in (HALF, QUANTISED, RESCORED)
