"""All attacks by their names."""

from importlib import import_module

from tools.attacks.tally import Attack

SUBJECTS = (
    *("topk", "routes", "bounds", "log_z", "scores", "beams", "draws", "law", "shards"),
    *("sketches", "grades", "builds", "api_keys"),
)
ATTACKS: dict[str, Attack] = {}
for subject in SUBJECTS:
    ATTACKS |= import_module(f"tools.attacks.{subject}").ATTACKS
