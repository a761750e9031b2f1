"""MkDocs hook: adds files outside docs/ that pages link to, under checkout/.

A source file becomes a page that shows it, and a folder becomes a list of its files. Pages keep the
links that they have in the checkout: `file.py#Class.method` is the line of that definition.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests read definitions without the extra `docs`
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
CHECKOUT = DOCS.parent
SHOWN = {".py": "python", ".yaml": "yaml", ".proto": "protobuf"}  # suffix -> lexer
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\(<?)([^)\s>#:]+)(?=[)\s>#])")
ICON = "server/logitsieve/console/static/icon.svg"  # as mkdocs.yml names it
SHIM = "https://unpkg.com/iframe-worker/shim"
SYMBOL = re.compile(r"\]\(<?([^)\s>#:]+\.py)#([^)\s>]+)")


def address(path: Path) -> str:
    """Return the site's address of a file or folder of the checkout."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.is_dir():
        path = path / ("README.md" if (path / "README.md").exists() else "index.md")
    elif path.suffix in SHOWN:
        path = path.with_name(path.name + ".md")
    return "checkout/" + path.relative_to(CHECKOUT).as_posix()


def replace_links(text: str, source: Path, new: Callable[[Path, str], str]) -> str:
    """Replace each link to a file in the page `source` by `new(file, link)`."""

    def replaced(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        return link[1] + (new(target, link[2]) if target.exists() else link[2])

    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def linked_files(page: Path) -> list[Path]:
    """Return the files and folders outside docs/ that a page links to."""
    targets: list[Path] = []

    def collect(target: Path, link: str) -> str:
        if not target.is_relative_to(DOCS):
            targets.append(target)
        return link

    replace_links(page.read_text(encoding="utf-8"), page, collect)
    return targets


def definitions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, int]]:
    """Yield the qualified name and the line of each class and function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node.lineno
            yield from definitions(node, f"{within}{node.name}.")


def linked_definitions() -> dict[Path, set[str]]:
    """Return the definitions that pages link to, by file."""
    found: dict[Path, set[str]] = {}
    for page in (CHECKOUT / "CONTRIBUTING.md", *DOCS.rglob("*.md")):
        for target, name in SYMBOL.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            found.setdefault((page.parent / target).resolve(), set()).add(name)
    return found


def shown(path: Path, names: set[str]) -> str:
    """Return a page that shows a source file, with an anchor before each of these definitions."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text if names else "")
    at = {line: name for name, line in definitions(tree) if name in names}
    fence = f"~~~~ {SHOWN[path.suffix]}\n"
    lines = [
        f'~~~~\n\n<a id="{at[number]}"></a>\n\n{fence}{line}' if number in at else line
        for number, line in enumerate(text.splitlines(keepends=True), 1)
    ]
    return f"# {path.relative_to(CHECKOUT)}\n\n{fence}{''.join(lines)}~~~~\n"


def listing(folder: Path, files: list[Path]) -> str:
    lines = [f"- [{path.relative_to(folder)}]({path.relative_to(folder)})" for path in files]
    return f"# {folder.relative_to(CHECKOUT)}\n\n" + "\n".join(lines)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    names = linked_definitions()
    waiting = [CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "CHANGELOG.md", CHECKOUT / ICON]
    for page in DOCS.rglob("*.md"):
        waiting += linked_files(page)
    while waiting:
        path = waiting.pop()
        uri = address(path)
        if files.get_file_from_path(uri):
            continue
        if path.is_dir() and not (path / "README.md").exists():
            inside = [each for each in sorted(path.rglob("*")) if each.is_file()]
            inside = [each for each in inside if "__pycache__" not in each.parts]
            files.append(File.generated(config, uri, content=listing(path, inside)))
            waiting += inside
        elif path.suffix in SHOWN:
            content = shown(path, names.get(path, set()))
            files.append(File.generated(config, uri, content=content))
        else:
            path = path / "README.md" if path.is_dir() else path
            files.append(File.generated(config, uri, abs_src_path=str(path)))
            waiting += linked_files(path) if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the checkout into links between pages of the site."""
    uri = page.file.src_uri
    source = CHECKOUT / uri.removeprefix("checkout/") if uri.startswith("checkout/") else DOCS / uri
    folder = Path(uri).parent
    return replace_links(
        markdown,
        source,
        lambda target, _: Path(os.path.relpath(address(target), folder)).as_posix(),
    )


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Take the search's worker from the site, where Material's plugin asks unpkg.com for one."""
    folder = Path(page.file.dest_uri).parent
    return output.replace(SHIM, Path(os.path.relpath("worker.js", folder)).as_posix())


def on_post_template(output: str, *, template_name: str, config: MkDocsConfig) -> str:
    return output.replace(SHIM, "/worker.js")
