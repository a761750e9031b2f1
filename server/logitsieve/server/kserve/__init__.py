"""KServe v2, as Triton speaks it: `inference.GRPCInferenceService` beside our own services.

Its stubs are tritonclient's, which the extra `kserve` installs; without it there is no facade.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

NEEDED = ("tritonclient", "packaging")  # the first needs the second, but may come without it


def kserve_services() -> Any:
    """The module of the two services, or None without the extra."""
    if not all(map(find_spec, NEEDED)):
        return None
    return import_module("logitsieve.server.kserve.service")
