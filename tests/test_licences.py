"""What users install beside logitsieve may be used as freely as it."""

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement

INSTALLED = ("server", "console", "kserve", "otel", "builder", "training", "huggingface", "ik")
# As they name themselves: permissive, or weak copyleft of libraries that are only called.
FREE = re.compile(
    r"\b(Apache|MIT|BSD|0BSD|ISC|PSF|Python Software|MPL|Zlib|Unlicense|Public Domain)\b", re.I
)
OF_LICENCE = re.compile("License :: ")
UNTOLD = {"nvidia", "cuda"}  # torch's own libraries, which only a GPU needs


def closure(name: str, extras: frozenset[str], seen: set[str]) -> None:
    """Add the installed distributions that `name` requires with `extras`."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        asked = [{"extra": extra} for extra in extras] or [{"extra": ""}]
        if requirement.marker and not any(map(requirement.marker.evaluate, asked)):
            continue
        key = f"{requirement.name.lower()}[{','.join(sorted(requirement.extras))}]"
        if key not in seen:
            seen.add(key)
            try:
                closure(requirement.name, frozenset(requirement.extras), seen)
            except metadata.PackageNotFoundError:
                seen.discard(key)


def told(name: str) -> str:
    about = metadata.metadata(name)
    fields = [about[field] for field in ("License-Expression", "License") if field in about]
    classifiers = about.get_all("Classifier") or []
    return " ".join([*(text[:80] for text in fields), *filter(OF_LICENCE.match, classifiers)])


def names() -> list[str]:
    seen: set[str] = set()
    closure("logitsieve", frozenset(INSTALLED), seen)
    return sorted({key.split("[")[0] for key in seen} - {"logitsieve"})


@pytest.mark.parametrize("name", names())
def test_a_licence_is_free(name: str) -> None:
    if name.split("-")[0] in UNTOLD:
        pytest.skip("a library of CUDA, which comes with torch alone")
    assert FREE.search(told(name)), f"{name}: {told(name) or 'no licence told'}"
