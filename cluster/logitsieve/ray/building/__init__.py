"""Builds and captures by tasks of Ray."""

from __future__ import annotations

from logitsieve.ray.building.executor import RayExecutor, RayFailed, connected

__all__ = ["RayExecutor", "RayFailed", "connected"]
