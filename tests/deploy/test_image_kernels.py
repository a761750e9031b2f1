"""The kernels that the image brings: each processor gets those it would compile for itself."""

import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import pytest

from logitsieve.kernels.simd.byte_lanes import form_of
from logitsieve.utils.own_files import write_own
from tests.deploy.dockerfile import REPOSITORY

SCRIPT = REPOSITORY / "deploy" / "image" / "kernels.py"
SPEC = spec_from_file_location("kernels", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
script: Any = module_from_spec(SPEC)
SPEC.loader.exec_module(script)
OLDER = "sse3 ssse3 sse4.1 sse4.2 popcnt"
LEVEL3 = "avx avx2 bmi bmi2 cx16 f16c fma lzcnt movbe sahf xsave"
LEVEL4 = "avx512bw avx512cd avx512dq avx512f avx512vl"
V3 = {*OLDER.split(), *LEVEL3.split()}
V4 = V3.union(LEVEL4.split())
SUITED = {
    "Haswell, Zen 2": V3 | {"aes", "adx"},
    "Zen 3": V3 | {"aes", "sha", "sse4a", "vaes", "vpclmulqdq"},
    "Skylake-SP": V4 | {"aes"},
    "Cascade Lake": V4 | {"avx512vnni"},
    "Ice Lake": V4 | {"avx512vnni", "avx512vbmi", "gfni", "vaes"},
    "Sapphire Rapids": V4 | {"amx-int8", "avx512vbmi", "avx512vnni", "avxvnni", "vaes"},
    "Zen 4, Zen 5": V4 | {"avx512vbmi", "avx512vnni", "avxvnni", "sse4a", "vaes"},
}
OTHERS = {
    "Nehalem": set(OLDER.split()),
    "Alder Lake": V3 | {"avxvnni", "vaes"},
    "Knights Landing": V3 | {"avx512f", "avx512cd"},
    "Neoverse": {"dotprod", "neon"},
}


def asked() -> set[str]:
    sources = (REPOSITORY / "core/logitsieve/kernels").rglob("*.py")
    return {name for path in sources for name in re.findall(r'has\("([\w.]+)"\)', path.read_text())}


@pytest.mark.parametrize("host", SUITED.values(), ids=list(SUITED))
def test_no_processor_gets_slower_code_than_its_own(host: set[str]) -> None:
    settings = script.environment_of(host)
    named = {name.removeprefix("+") for name in settings["NUMBA_CPU_FEATURES"].split(",")}
    assert named <= host
    assert settings["NUMBA_CPU_NAME"] == ("x86-64-v4" if host >= V4 else "x86-64-v3")
    # What is not asked where there is something better.
    moot = {"avxvnni"} if "avx512vnni" in host else set() if "avx512f" in host else {"sse4a"}
    assert asked() & host - moot == asked() & named - moot
    assert form_of("x86_64-linux", host.__contains__) is form_of("x86_64-linux", named.__contains__)


@pytest.mark.parametrize("host", OTHERS.values(), ids=list(OTHERS))
def test_a_processor_of_another_kind_compiles_its_own(host: set[str]) -> None:
    assert script.environment_of(host) == {}


def test_who_runs_the_image_may_read_what_its_builder_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "share" / "logitsieve"

    class Compiling:
        def __init__(self, command: list[str], **options: object) -> None:
            write_own(Path(command[-1]), "kernels-1/topk-1", b"code")

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(script, "subprocess", SimpleNamespace(Popen=Compiling))
    monkeypatch.setattr(script.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "argv", ["kernels.py", "compile", str(folder)])
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    before = os.umask(0o022)
    try:
        script.main()
    finally:
        os.umask(before)
    made = folder / "kernels-1" / "topk-1"
    for path in (made, made.parent, folder, folder.parent):
        assert path.stat().st_mode & 0o777 == (0o644 if path == made else 0o755), path


def run(**environment: str) -> dict[str, str]:
    """Numba's settings in a command that the script became."""
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    command = [sys.executable, str(SCRIPT), "run", sys.executable, "-c", show]
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        command, env=inherited | environment, capture_output=True, text=True, check=True
    )
    shown = json.loads(done.stdout)
    return {name: text for name, text in shown.items() if name.startswith("NUMBA_")}


def test_a_command_runs_with_the_settings_unless_it_has_its_own() -> None:
    here = {name for name, there in llvm.get_host_cpu_features().items() if there}
    assert run() == script.environment_of(here)
    assert run(NUMBA_CPU_NAME="generic") == {"NUMBA_CPU_NAME": "generic"}
