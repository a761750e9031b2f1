"""Text of the five kinds: two packages of Debian, and Python's own library.

`debian-handbook` says the same in many languages, `anarchism` is English prose; `apt-get download`
fetches them, and nothing is installed. Paragraphs that are not translated are left out.
"""

import gzip
import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from demo.published import check

DEBIAN = {
    "debian-handbook": (
        "11.20220922",
        "3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa",
    ),
    "anarchism": ("15.3-3", "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948"),
}
HANDBOOK = "usr/share/doc/debian-handbook/html"
PROSE = "usr/share/doc/anarchism/markdown"
KEPT = 5  # one chapter of prose in five is kept apart, to judge
SOURCES = 4  # one module of Python's library in four is read


def debian(package: str, cache: Path) -> Path:
    """The folder into which a package of Debian is unpacked."""
    folder = cache / "texts" / package
    if not folder.exists():
        version, wanted = DEBIAN[package]
        folder.parent.mkdir(parents=True, exist_ok=True)
        deb = folder.with_name(f"{package}_{version}_all.deb")
        if not deb.exists():
            command = ["apt-get", "download", "--quiet", f"{package}={version}"]
            subprocess.run(command, cwd=folder.parent, check=True)
        check(deb, wanted)
        subprocess.run(["dpkg", "-x", str(deb), str(folder)], check=True)
    return folder


def paragraphs(page: str) -> list[str]:
    """Return the text of each `div` of the class `para`. Nested `div`s are not part of it."""
    found = []
    for div in reversed(ElementTree.fromstring(page).findall(".//{*}div")):
        if div.get("class") == "para":
            found.append("".join(div.itertext()))
        tail = div.tail
        div.clear()
        div.tail = tail
    return found[::-1]


def handbook(cache: Path, language: str, pattern: str, share: float) -> str:
    """The paragraphs with a match of `pattern` for so large a share of their characters."""
    pages = sorted((debian("debian-handbook", cache) / HANDBOOK / language).glob("*.html"))
    found: dict[str, None] = {}
    for page in pages:
        for raw in paragraphs(page.read_text(encoding="utf-8")):
            line = " ".join(raw.split())
            if len(line) >= 40 and len(re.findall(pattern, line)) > share * len(line):
                found[line] = None
    return "\n\n".join(found)


def prose(cache: Path, *, apart: bool) -> str:
    """Chapters of English prose: those that are kept apart, or the others."""
    pages = sorted((debian("anarchism", cache) / PROSE).glob("sec*.md.gz"))
    lines = []
    for number, page in enumerate(pages):
        if (number % KEPT == 0) == apart:
            for raw in gzip.decompress(page.read_bytes()).decode("utf-8").split("\n\n"):
                lines.append(" ".join(raw.split()))
    return "\n\n".join(lines)


def sources(cache: Path) -> str:
    """Modules of the library of the Python that runs this."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[::SOURCES]
    return "\n\n".join(module.read_text(encoding="utf-8") for module in modules)


TEXTS: dict[str, Callable[[Path], str]] = {
    "english": lambda cache: prose(cache, apart=True),
    "german": lambda cache: handbook(cache, "de-DE", r"\b(?:der|die|das|und|ist|ein|mit)\b", 0.01),
    "japanese": lambda cache: handbook(cache, "ja-JP", "[\u3040-\u30ff]", 0.2),
    "python": sources,
    "fit": lambda cache: prose(cache, apart=False),
}
