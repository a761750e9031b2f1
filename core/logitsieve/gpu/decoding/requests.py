"""What goes with hidden, as tensors on its GPU; and the way by the host and back.

Values of tensors on a GPU are not looked at: that would wait for it.

Shape letters: B batch rows, T targets.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import Beams, score_targets
from logitsieve.api.results import ArrayLike
from logitsieve.decoding.logit_edits import check_ids

Reply = TypeVar("Reply", bound=Any)  # of types/results

KINDS = {"scores": "a number", "lengths": "a whole number", "finished": "a bool"}


def there(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy on a GPU; what was asked of the GPU before is not waited for."""
    own = np.array(array)  # which may be read-only
    return torch.from_numpy(own).to(device, non_blocking=True)


def here(value: Any) -> Any:
    """A tensor's values in an array, for which its GPU is waited for; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return (value.float() if value.is_floating_point() else value).cpu().numpy()


def in_tensors(reply: Reply, device: torch.device) -> Reply:
    """A reply whose arrays, the answer's too, are on a GPU."""
    found: dict[str, Any] = {
        name: there(value, device) if isinstance(value, np.ndarray) else value
        for name, value in reply._asdict().items()
    }
    if "answer" in found:
        found["answer"] = in_tensors(found["answer"], device)
    told: Reply = reply._replace(**found)
    return told


def targets_there(targets: ArrayLike, hidden: Tensor, vocab_size: int) -> Tensor:
    """Ids [B, T]; InvalidRequest for what is not one, as far as that is known on the host."""
    if not isinstance(targets, Tensor):
        checked = score_targets(targets, len(hidden))
        check_ids(checked, vocab_size, "targets")
        return there(checked, hidden.device)
    ids: Tensor = targets[:, None] if targets.ndim == 1 else targets
    if not _integers(ids) or ids.ndim != 2 or len(ids) != len(hidden) or not ids.numel():
        got = f"{targets.dtype} {list(targets.shape)}"
        raise InvalidRequest("targets", got, f"integers [{len(hidden)}, T] or [{len(hidden)}]")
    return ids.to(hidden.device)


def seeds_there(seeds: Tensor, hidden: Tensor) -> Tensor:
    """int64 [B], of the bits of uint64; InvalidRequest names what is wrong."""
    if not _integers(seeds) or seeds.numel() not in (1, len(hidden)):
        got = f"{seeds.dtype} {list(seeds.shape)}"
        raise InvalidRequest("seeds", got, f"int64 [{len(hidden)}], or one for all rows")
    bits = seeds.view(torch.int64) if seeds.dtype == torch.uint64 else seeds.long()
    return bits.to(hidden.device).reshape(-1).expand(len(hidden)).contiguous()


def beams_there(beams: Beams, given: dict[str, Tensor], hidden: Tensor) -> Beams:
    """The same with [B] tensors for its vectors: those that are `given`, and copies of others."""
    vectors: dict[str, Any] = {
        name: _vector(name, given[name], hidden)
        if name in given
        else there(getattr(beams, name), hidden.device)
        for name in KINDS
    }
    if "finished" in given and not beams.eos_ids:
        raise InvalidRequest("eos_ids", "none", "at least one, where hypotheses may have finished")
    return beams._replace(**vectors)


def _vector(name: str, value: Tensor, hidden: Tensor) -> Tensor:
    """float32, integers or bools [B]."""
    fits = {
        "scores": value.is_floating_point() or _integers(value),
        "lengths": _integers(value),
        "finished": value.dtype == torch.bool,
    }
    if not fits[name] or value.numel() != len(hidden):
        got = f"{value.dtype} {list(value.shape)}"
        raise InvalidRequest(name, got, f"{KINDS[name]} for each of {len(hidden)} rows of hidden")
    flat = value.detach().reshape(-1).to(hidden.device)
    return flat.float() if name == "scores" else flat


def _integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
