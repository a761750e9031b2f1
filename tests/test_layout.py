"""One package, several roots: nothing may hide a root or come from an older installation."""

import runpy
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import logitsieve

REPOSITORY = Path(__file__).parents[1]
INSIDE = [path for path in REPOSITORY.glob("*/logitsieve/*") if path.name != "__pycache__"]
PACKAGES = sorted(path for path in INSIDE if path.is_dir())


def test_every_root_is_packaged_and_none_hides_another() -> None:
    [only] = REPOSITORY.glob("*/logitsieve/__init__.py*")
    assert logitsieve.__file__ == str(only)
    assert set(logitsieve.__path__) == {str(path.parent) for path in INSIDE}
    files = {path.name for path in INSIDE if not path.is_dir()}
    assert files == {"__init__.py", "__main__.py", "py.typed", "version.py"}
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    roots = {package.parents[1].name for package in PACKAGES}
    tool = settings["tool"]
    assert set(tool["hatch"]["build"]["dev-mode-dirs"]) == roots
    assert set(tool["hatch"]["build"]["targets"]["wheel"]["sources"]) == roots
    assert {entry.rsplit("/", 1)[1] for entry in tool["mypy"]["mypy_path"].split(":")} == roots
    assert roots - {"proto"} <= set(tool["mypy"]["files"])
    names = [package.name for package in PACKAGES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_package_is_typed_and_imported_from_the_checkout(package: Path) -> None:
    assert (package / "__init__.py").is_file()
    assert (package / "py.typed").is_file()
    spec = find_spec(f"logitsieve.{package.name}")
    assert spec is not None
    assert spec.origin == str(package / "__init__.py")


def test_what_pip_is_configured_with_is_given_to_uv() -> None:
    """Mirrors and folders of wheels; of what has no meaning for both, nothing."""
    flags = runpy.run_path(str(REPOSITORY / ".ci" / "install.py"))["flags"]
    folders = ["--extra-index-url", "file:///a", "--extra-index-url", "file:///b"]
    assert flags(":env:.find-links='/w'\nglobal.cert='/c'\n") == ["--find-links", "/w"]
    assert flags("global.extra-index-url='\\nfile:///a\\nfile:///b'\n") == folders
    assert flags("global.index-url='https://m/s?a=b'") == ["--default-index", "https://m/s?a=b"]
    assert flags("") == []
