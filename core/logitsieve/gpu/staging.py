"""Arguments of a decoder's methods made ready for a GPU.

Values of tensors on a GPU are not looked at: that would wait for it.

Shape letters: B batch rows, T targets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logitsieve.api import requests
from logitsieve.api.decoder import BeamOptions, SampleOptions
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import Beams, Sampling, score_targets, spread_seed
from logitsieve.api.results import ArrayLike
from logitsieve.decoding.logit_edits import check_ids
from logitsieve.gpu.device import to_device, to_host

VECTORS = {"scores": "a number", "lengths": "a whole number", "finished": "a bool"}


def device_sampling(hidden: Tensor, samples: int, options: SampleOptions) -> Sampling:
    """The checked request of `sample` for hidden [B, D]: a tensor of seeds stays one, int64 [B]."""
    seeds = options.get("seeds")
    if not isinstance(seeds, Tensor):
        return requests.sampling(len(hidden), samples, options)
    sampling = requests.sampling(len(hidden), samples, {**options, "seeds": None})
    bits: Any = _seed_bits(seeds, hidden)
    return sampling._replace(seeds=bits)


def device_beams(
    hidden: Tensor, scores: ArrayLike | None, beams_in: int, beams_out: int, options: BeamOptions
) -> Beams:
    """Hypotheses at the rows of hidden [B, D]: vectors that are tensors stay on the GPU."""
    given: Any = {"scores": scores, **options}
    tensors = {name: given.pop(name) for name in VECTORS if isinstance(given.get(name), Tensor)}
    beams = requests.beams(len(hidden), given.pop("scores", None), beams_in, beams_out, given)
    ready: Any = {name: _vector(name, vector, hidden) for name, vector in tensors.items()}
    return beams._replace(**ready)


def host_beams(beams: Beams) -> Beams:
    """The same hypotheses in arrays, whose values are checked: InvalidRequest names the field."""
    beams_in, beams_out, scores, lengths, finished, eos_ids, length_alpha = to_host(beams)
    options: BeamOptions = {
        "lengths": lengths, "finished": finished, "eos_ids": eos_ids, "length_alpha": length_alpha,
    }  # fmt: skip
    return requests.beams(len(scores), scores, beams_in, beams_out, options)


def device_targets(targets: ArrayLike, hidden: Tensor, vocab_size: int) -> Tensor:
    """Ids [B, T]; InvalidRequest where they cannot be, as far as the host can see."""
    if not isinstance(targets, Tensor):
        checked = score_targets(targets, len(hidden))
        check_ids(checked, vocab_size, "targets")
        copied: Tensor = to_device(checked, hidden.device)
        return copied
    ids: Tensor = targets[:, None] if targets.ndim == 1 else targets
    if not _integers(ids) or ids.ndim != 2 or len(ids) != len(hidden) or not ids.numel():
        got = f"{targets.dtype} {list(targets.shape)}"
        raise InvalidRequest("targets", got, f"integers [{len(hidden)}, T] or [{len(hidden)}]")
    return ids.to(hidden.device)


def _seed_bits(seeds: Tensor, hidden: Tensor) -> Tensor:
    """int64 [B], the bits of uint64; InvalidRequest names what is wrong."""
    if not _integers(seeds) or seeds.numel() not in (1, len(hidden)):
        got = f"{seeds.dtype} {list(seeds.shape)}"
        allowed = f"int64 [{len(hidden)}], or one to be spread over the rows"
        raise InvalidRequest("seeds", got, allowed)
    bits = seeds.view(torch.int64) if seeds.dtype == torch.uint64 else seeds.long()
    bits = bits.to(hidden.device).reshape(-1)
    if len(bits) < len(hidden):
        bits = spread_seed(bits, torch.arange(len(hidden), device=hidden.device))
    return bits.contiguous()


def _vector(name: str, value: Tensor, hidden: Tensor) -> Tensor:
    """float32, integers or bools [B]."""
    fits = {
        "scores": value.is_floating_point() or _integers(value),
        "lengths": _integers(value),
        "finished": value.dtype == torch.bool,
    }
    if not fits[name] or value.numel() != len(hidden):
        got = f"{value.dtype} {list(value.shape)}"
        allowed = f"{VECTORS[name]} for each of {len(hidden)} rows of hidden"
        raise InvalidRequest(name, got, allowed)
    flat = value.detach().reshape(-1).to(hidden.device)
    return flat.float() if name == "scores" else flat


def _integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
