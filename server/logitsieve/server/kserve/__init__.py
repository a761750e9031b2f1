"""KServe v2 with Triton's extensions, using tritonclient's stubs from the extra `kserve`."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

NEEDED = ("tritonclient", "packaging")  # tritonclient imports it undeclared


def kserve_services() -> Any:
    if not has_kserve():
        return None
    return import_module("logitsieve.server.kserve.service")


def has_kserve() -> bool:
    return all(map(find_spec, NEEDED))
