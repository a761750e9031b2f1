"""Fuzz with coverage, by atheris. `python -m benchmarks.fuzz [target ...] --seconds 60`.

Each target runs in a process of its own for so many seconds, beginning with its corpus and some
random bytes. An input that raises, crashes or takes longer than TIMEOUT_S is left in the folder of
findings, and the status is 1. The corpus then keeps the shortest input of each outcome, old or new.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from benchmarks.fuzz.corpora import FOLDER, keep
from benchmarks.fuzz.targets import NAMES, targets

TIMEOUT_S = 20
MEMORY_MB = 4096
LENGTH = 600  # bytes of an input
BEGINNINGS = 50  # of random bytes: to grow one from nothing takes long


def main() -> int:
    """Run what is asked for; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *NAMES], help="all of them by default")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer")
    parser.add_argument("--kernels", type=Path, help="folder that keeps compiled kernels")
    parser.add_argument("--findings", type=Path, default=Path("findings"), help="inputs at fault")
    options = parser.parse_args()
    failed = False
    with targets(options.kernels) as known:
        for name in options.target or NAMES:
            with tempfile.TemporaryDirectory() as found:
                failed |= bool(run(name, Path(found), options))
                kept = keep(known[name], name, Path(found))
            print(f"{name}: {kept} inputs kept", flush=True)
    return int(failed)


def run(name: str, found: Path, options: argparse.Namespace) -> int:
    """The status of libFuzzer, which writes new inputs to `found`."""
    corpus = FOLDER / name
    corpus.mkdir(parents=True, exist_ok=True)
    random = Random(options.seed)
    for number in range(BEGINNINGS):
        (found / f"random-{number}").write_bytes(random.randbytes(LENGTH))
    findings = options.findings / name
    findings.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.fuzz.process", name, str(options.kernels or "")]
    command += [f"-max_total_time={options.seconds}", f"-seed={options.seed}"]
    command += [
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-max_len={LENGTH}",
        "-len_control=0",
    ]
    command += [f"-artifact_prefix={findings}/", "-verbosity=1", "-print_final_stats=1"]
    return subprocess.run([*command, str(found), str(corpus)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
