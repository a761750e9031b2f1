"""The models that fuzzed requests are about: small ones with a head of each kind of bound."""

import json
from pathlib import Path

from logitsieve.heads.certified import GRADES
from tests.synthetic import make_softmax, write_heads

V, D = 100, 24
MODEL = "demo"


def write_models(models: Path) -> None:
    """demo@1 (stable), demo@2 (canary), which has levels; demo@3 is no index."""
    words = [f"word{n}" for n in range(V)]
    for version, grades in ((1, ()), (2, GRADES)):
        out, softmax = models / MODEL / str(version), make_softmax(V, D, version)
        write_heads(out, softmax, "screen", "certified", *grades, "svd", vocabulary=words)
    (models / MODEL / "3").mkdir()
    aliases = models / MODEL / "aliases.json"
    aliases.write_text(json.dumps({"canary": 2, "stable": 1}), encoding="utf-8")
