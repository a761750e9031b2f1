"""Builds and captures whose blocks are tasks of Ray."""

from __future__ import annotations

from logitsieve.ray.building.cluster import connected
from logitsieve.ray.building.executor import RayExecutor, RayFailed

__all__ = ["RayExecutor", "RayFailed", "connected"]
