"""The models that fuzzed requests are about: small ones with a head of each kind of bound."""

import json
from pathlib import Path

from tests.synthetic import ARRAYS, make_softmax, usual_sketch, write_heads

V, D = 100, 24
MODEL = "demo"


def write_models(models: Path) -> None:
    """demo@1 (stable), demo@2 (canary), which has levels; demo@3 is no index."""
    words = [f"word{n}" for n in range(V)]
    heads = "screen", "sketch", "svd"
    for version in (1, 2):
        out, softmax = models / MODEL / str(version), make_softmax(V, D, version)
        parts = {name: ARRAYS[name](softmax) for name in heads}
        if version == 2:
            parts["sketch"] = usual_sketch(softmax)
        write_heads(out, softmax, *heads, vocabulary=words, parts=parts)
    (models / MODEL / "3").mkdir()
    aliases = models / MODEL / "aliases.json"
    aliases.write_text(json.dumps({"canary": 2, "stable": 1}), encoding="utf-8")
