"""Writes the bundled excerpt of a larger text: `python -m demo.excerpt FILE.gz`.

Runs of consecutive paragraphs, evenly spread over the text. One in ten goes to the end of the
excerpt: its last tenth is held out.
"""

import gzip
from pathlib import Path
from typing import Annotated

import typer

EXCERPT = Path(__file__).parent / "text" / "docs.txt.gz"

RUN = 20  # paragraphs: about 750 words, far more than the LSTM remembers
PERIOD = 7 * RUN  # a seventh of the text
HELD_OUT_EVERY = 10


def read_paragraphs(path: Path) -> list[str]:
    """Read gzipped UTF-8, a paragraph a line, without empty lines."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in file if line.strip()]


def write_paragraphs(path: Path, paragraphs: list[str]) -> None:
    """Write for `read_paragraphs`; equal paragraphs give equal bytes."""
    text = "".join(f"{paragraph}\n" for paragraph in paragraphs)
    path.write_bytes(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))


def excerpt(paragraphs: list[str]) -> list[str]:
    """Return a seventh of the paragraphs, each distinct one once."""
    runs = [paragraphs[start : start + RUN] for start in range(0, len(paragraphs), PERIOD)]
    last = runs[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    del runs[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    return list(dict.fromkeys(paragraph for run in runs + last for paragraph in run))


def split(paragraphs: list[str]) -> tuple[list[str], list[str]]:
    """Split the excerpt into text to train on and its last tenth, which is held out."""
    end = len(paragraphs) - len(paragraphs) // HELD_OUT_EVERY
    return paragraphs[:end], paragraphs[end:]


def write_training(folder: Path, paragraphs: list[str], held_out: list[str]) -> None:
    """Write valid.txt.gz, held out of an excerpt, and train.txt.gz, all other text."""
    unseen = set(held_out)
    seen = [paragraph for paragraph in paragraphs if paragraph not in unseen]
    folder.mkdir(parents=True, exist_ok=True)
    write_paragraphs(folder / "train.txt.gz", seen)
    write_paragraphs(folder / "valid.txt.gz", held_out)


def main(
    text: Annotated[Path, typer.Argument(help="Text, one paragraph a line, gzipped.")],
    out: Annotated[Path, typer.Option(help="Where to write the excerpt.")] = EXCERPT,
    training: Annotated[
        Path | None,
        typer.Option(help="Folder for train.txt.gz and valid.txt.gz: what to train a model on."),
    ] = None,
) -> None:
    """Write the bundled excerpt of TEXT."""
    paragraphs = read_paragraphs(text)
    chosen = excerpt(paragraphs)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_paragraphs(out, chosen)
    if training is not None:
        write_training(training, paragraphs, split(chosen)[1])
    words = sum(len(paragraph.split()) for paragraph in chosen)
    typer.echo(f"{out}: {len(chosen):,} paragraphs, {words:,} words, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    typer.run(main)
