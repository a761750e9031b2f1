"""Fuzz with coverage, by atheris: `python -m tools.fuzz [target ...] --seconds 60`.

Each target runs in a process of its own for that many seconds, starting from its corpus and some
random bytes. An input that raises, crashes or takes longer than TIMEOUT_S is left in the folder of
findings, and the exit status is 1. The corpus then keeps the shortest input of each outcome.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from tools.fuzz.corpora import keep, read_inputs
from tools.fuzz.targets import NAMES, targets

TIMEOUT_S = 20
MEMORY_MB = 4096
LENGTH = 600  # bytes of an input
RANDOM_INPUTS = 50  # to grow one from nothing takes long


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *NAMES], help="all of them by default")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer")
    parser.add_argument("--kernels", type=Path, help="folder that keeps compiled kernels")
    parser.add_argument("--findings", type=Path, default=Path("findings"), help="inputs at fault")
    options = parser.parse_args()
    failed = False
    with targets(options.kernels) as all_targets:
        for name in options.target or NAMES:
            with tempfile.TemporaryDirectory() as folder:
                failed |= bool(run(name, Path(folder), options))
                kept = keep(all_targets[name], name, Path(folder))
            print(f"{name}: {kept} inputs kept", flush=True)
    return int(failed)


def run(name: str, folder: Path, options: argparse.Namespace) -> int:
    """Exit status of libFuzzer, which reads its first inputs in `folder` and adds new ones."""
    random = Random(options.seed)
    first = [*read_inputs(name), *(random.randbytes(LENGTH) for _ in range(RANDOM_INPUTS))]
    for number, data in enumerate(first):
        (folder / f"first-{number}").write_bytes(data)
    findings = options.findings / name
    findings.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.fuzz.process", name, str(options.kernels or "")]
    command += [f"-max_total_time={options.seconds}", f"-seed={options.seed}"]
    command += [
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-max_len={LENGTH}",
        "-len_control=0",
    ]
    command += [f"-artifact_prefix={findings}/", "-verbosity=1", "-print_final_stats=1"]
    return subprocess.run([*command, str(folder)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
