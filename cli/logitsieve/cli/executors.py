"""The option --ray: who makes the calls of a build or a capture."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext

from logitsieve.utils.environment import require

RAY = "Share the work over a cluster of Ray: auto, HOST:PORT, or local for one on this machine."


def executor_at(address: str | None) -> AbstractContextManager[Executor | None]:
    """An executor on the cluster of Ray at that address; None without one.

    MissingExtra without Ray, InvalidRequest where there is no cluster.
    """
    if address is None:
        return nullcontext()
    require("ray", "ray")
    from logitsieve.ray.building import connected

    return connected(address)
