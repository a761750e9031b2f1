"""KServe v2 with Triton's extensions, by tritonclient's stubs from the extra `kserve`."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

NEEDED = ("tritonclient", "packaging")  # tritonclient imports packaging undeclared


def kserve_services() -> Any:
    """Return the module of the services, or None without the extra."""
    if not has_kserve():
        return None
    return import_module("logitsieve.server.kserve.service")


def has_kserve() -> bool:
    """Check for the extra."""
    return all(map(find_spec, NEEDED))
