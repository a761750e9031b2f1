"""All attacks by their names."""

from collections.abc import Mapping

from tests.attacks import (
    beams,
    bounds,
    builds,
    draws,
    law,
    log_z,
    routes,
    scores,
    shards,
    sketches,
    tokens,
    topk,
)
from tests.attacks.tally import Attack

ATTACKS: Mapping[str, Attack] = {
    name: attack
    for subject in (
        topk,
        routes,
        bounds,
        log_z,
        scores,
        beams,
        draws,
        law,
        shards,
        sketches,
        builds,
        tokens,
    )
    for name, attack in subject.ATTACKS.items()
}
