import secrets
import shutil
from pathlib import Path
from typing import Annotated

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import AsJson
from logitsieve.cli.output import print_json, shown


def command(
    models: Annotated[Path, typer.Argument(help="The folder of <name>/<version>/ indexes.")],
    keep: Annotated[int, typer.Option(min=1, help="Number of the highest versions to keep.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Remove all versions of every model except the highest ones and those with an alias.

    A server that has loaded a removed version keeps answering with it.

    Example: logitsieve prune models --keep 3
    """
    from logitsieve.index.manifest import is_name
    from logitsieve.server.models.routes import read_aliases

    if not models.is_dir():
        raise InvalidRequest("models", models, "a folder that holds <name>/<version>/ indexes")
    names = sorted(folder for folder in models.iterdir() if is_name(folder.name))
    folders = [folder for folder in names if folder.is_dir()]
    for folder in folders:
        read_aliases(folder)  # refuses a damaged file before anything is removed
    removed = [str(path) for folder in folders for path in prune(folder, keep)]
    if as_json:
        print_json({"removed": removed})
        return
    for path in removed:
        print(f"removed {shown(path)}")
    print(f"{len(removed)} versions removed")


def prune(model: Path, keep: int) -> list[Path]:
    from logitsieve.index.files import TEMPORARY
    from logitsieve.index.manifest import is_version
    from logitsieve.server.models.routes import locked, read_aliases

    with locked(model):
        versions = sorted(
            int(path.name)
            for path in model.iterdir()
            if is_version(path.name) and path.is_dir() and not path.is_symlink()
        )
        staying = {*versions[-keep:], *read_aliases(model).values()}
        old = [model / str(version) for version in versions if version not in staying]
        for path in old:
            # Renaming it first keeps every version's folder complete.
            leaving = path.rename(model / f"{TEMPORARY}{secrets.token_hex(8)}")
            shutil.rmtree(leaving)
    return old
