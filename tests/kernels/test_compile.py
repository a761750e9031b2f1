"""The folder of compiled kernels, and compiling where none can be written."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

import logitsieve
from logitsieve.kernels import compile as compile_module
from logitsieve.kernels.compile import Kernel, kernel, use_cache
from tests.synthetic import make_head, make_hidden, make_softmax

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from logitsieve.kernels.compile import use_cache
use_cache(Path(sys.argv[1]))
from logitsieve.kernels.rows.functions import functions_of
from logitsieve.kernels.sampling.log_z import csr_log_z
out = np.empty((1, 4))
csr_log_z(np.array([0, 2]), np.zeros(2), 1.0, out)
print(sum(csr_log_z._dispatcher.stats.cache_hits.values()), np.float32(out[0, 1]))
print(*(each._compiled.cache_hits for each in functions_of("F16") if each.address))
"""
COMPILED, LOADED = (["0", "0.6931472", *"000"], ["1", "0.6931472", *"111"])


def run_script(folder: Path, script: str = SCRIPT, *more: str, **settings: str) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", script, str(folder), *more]
    environment = {**os.environ, **settings}
    return subprocess.check_output(command, text=True, env=environment).split()


def test_a_second_process_loads_what_the_first_compiled_for_its_cpu(tmp_path: Path) -> None:
    assert (run_script(tmp_path), run_script(tmp_path)) == (COMPILED, LOADED)
    assert run_script(tmp_path, NUMBA_CPU_NAME="generic") == COMPILED
    [folder] = tmp_path.iterdir()
    assert len({file.name for file in folder.rglob("*")}) >= 2


MACHINE_CODE = """
import sys
from pathlib import Path
from logitsieve.kernels import compile as own
own.use_cache(Path(sys.argv[1]))

@own.inline
def twice(x):
    return 2 * x

@own.kernel("(int64,)")
def doubled(x):
    return twice(x)

assert doubled(21) == 42
for function in (twice, doubled._dispatcher):
    (compiled,) = function.overloads.values()
    print(compiled.library._codegen._engine.is_symbol_defined(compiled.fndesc.llvm_func_name))
"""


def test_only_entry_kernels_have_machine_code(tmp_path: Path) -> None:
    script = tmp_path / "functions.py"
    script.write_text(MACHINE_CODE)
    run = f"import runpy; runpy.run_path({str(script)!r})"
    assert run_script(tmp_path, run) == ["False", "True"]


HITS = """
import sys
from importlib import import_module
from pathlib import Path
from logitsieve.kernels.compile import use_cache
use_cache(Path(sys.argv[1]))
for module in sys.argv[2:]:
    entry = import_module(module).entry
    entry(1)
    print(sum(entry._dispatcher.stats.cache_hits.values()))
"""
HELPER = """
from logitsieve.kernels.compile import inline
@inline
def one_more(number):
    return number + 1
"""
ENTRY = """
from {package}.simd.helper import one_more
from logitsieve.kernels.compile import kernel
@kernel("(int64,)")
def entry(number):
    return one_more(number)
"""


def write_kernels(folder: Path, package: str) -> None:
    for name, text in {"simd/helper": HELPER, "topk/entry": ENTRY.format(package=package)}.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def append_comment(file: Path) -> None:
    file.write_text(file.read_text() + "# changed\n")


def hits(cache: Path, sources: Path) -> list[str]:
    modules = [f"{package}.kernels.topk.entry" for package in ("logitsieve", "elsewhere")]
    return run_script(cache, HITS, *modules, PYTHONPATH=str(sources))


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the kernels with one more, and a package with kernels of its own."""
    sources = tmp_path / "sources"
    kernels = sources / "logitsieve/kernels"
    shutil.copytree(Path(compile_module.__file__).parent, kernels)
    shutil.copy(str(logitsieve.__file__), kernels.parent)
    write_kernels(kernels, "logitsieve.kernels")
    write_kernels(sources / "elsewhere/kernels", "elsewhere.kernels")
    return sources


def test_a_change_recompiles_dependents(tmp_path: Path, sources: Path) -> None:
    """Kernels of another package have a digest of their own; a copy of all needs no compiler."""
    cache = tmp_path / "cache"
    assert hits(cache, sources) == ["0", "0"]
    moved = tmp_path / "installed/elsewhere"
    shutil.copytree(sources, moved, copy_function=shutil.copy)  # newer files
    assert hits(cache, moved) == ["1", "1"]
    append_comment(sources / "elsewhere/kernels/simd/helper.py")
    assert hits(cache, sources) == ["1", "0"]
    [package] = {folder.parent for folder in cache.glob("kernels-*/kernels-*")}
    assert len(list(package.glob("kernels-*"))) == 2
    append_comment(sources / "logitsieve/kernels/simd/helper.py")
    assert hits(cache, sources)[0] == "0"


ROUTED = """
import sys
from pathlib import Path
import numpy as np
from logitsieve.kernels.compile import use_cache
use_cache(Path(sys.argv[1]))
from tests.synthetic import make_head, make_hidden, make_softmax
print(*make_head("screen", make_softmax()).topk(make_hidden(3), 4).ids.ravel())
"""


@pytest.mark.exhaustive
def test_kernels_compile_for_the_cpu_that_is_named(tmp_path: Path) -> None:
    """A cache shared between machines is made for the least of them; answers are the same."""
    expected = make_head("screen", make_softmax()).topk(make_hidden(3), 4).ids.ravel()
    generic = run_script(tmp_path, ROUTED, NUMBA_CPU_NAME="generic", PYTHONPATH=str(Path.cwd()))
    assert generic == [str(number) for number in expected]


def one_more(number: int) -> int:
    return number + 1


def new_kernel() -> Kernel:
    """As a new process has it."""
    return kernel("(int64,)")(one_more)


def loaded() -> bool:
    """Whether a new kernel was loaded, not compiled."""
    new = new_kernel()
    assert new(1) == 2
    return bool(new._dispatcher.stats.cache_hits)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Afterwards kernels are kept where they were before."""
    monkeypatch.setattr(compile_module, "_cache", {"folder": tmp_path})
    return tmp_path


def test_what_a_crash_or_a_disk_damaged_is_compiled_again(cache: Path) -> None:
    assert [loaded(), loaded()] == [False, True]
    [file] = files(cache)
    whole = file.read_bytes()
    flipped = [bytes([*whole[:at], whole[at] ^ 0x80, *whole[at + 1 :]]) for at in (0, 40, -9)]
    for damaged in (b"", whole[:16], whole[: len(whole) // 2], whole + b"\0", *flipped):
        file.write_bytes(damaged)
        assert [loaded(), loaded()] == [False, True]
    other = file.with_name("another")
    file.rename(other)
    assert not loaded()
    file.write_bytes(other.read_bytes().replace(b"one_more", b"one_less"))
    assert not loaded()


def test_nothing_that_another_user_could_write_is_loaded(cache: Path) -> None:
    """Each is said once; a file alone is replaced by one of ours."""
    assert [loaded(), loaded()] == [False, True]
    [file] = files(cache)
    assert {path.stat().st_mode & 0o777 for path in (file, file.parent)} == {0o600, 0o700}
    for path, again in ((file, True), (file.parent, False), (cache, False)):
        for mode in (0o720, 0o702):
            path.chmod(mode)
            with pytest.warns(RuntimeWarning, match=rf"{path}: got owner \d+, mode 0{mode:o}"):
                assert not loaded()
            assert loaded() == again
        path.chmod(0o700)
    assert loaded()


def test_a_long_compilation_is_said_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert [loaded(), loaded()] == [False, True]
    assert not caplog.records
    compile_module._say_once.cache_clear()
    said = Event()
    monkeypatch.setattr(compile_module.log, "warning", lambda _: said.set())
    monkeypatch.setattr(compile_module, "PATIENCE_S", 0.0)
    new = new_kernel()
    new._dispatcher._cache.save_overload = lambda *_: said.wait(60)  # as long as it takes
    use_cache(cache / "empty")
    assert new(1) == 2
    assert said.is_set()


def test_all_who_write_a_file_at_the_same_time_leave_one(cache: Path) -> None:
    new = new_kernel()
    new(1)
    types, [result] = new._arguments, new._dispatcher.overloads.values()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: new._dispatcher._cache.save_overload(types, result), range(100)))
    assert len(files(cache)) == 1
    assert loaded()


def test_an_unwritable_folder_costs_one_warning_and_no_error(cache: Path) -> None:
    occupied = cache / "file"
    occupied.write_text("not a folder")
    use_cache(occupied)
    with pytest.warns(RuntimeWarning, match=f"compiled again, as {occupied} cannot"):
        assert not loaded()
    assert not loaded()  # warnings are errors
    use_cache(cache)
    assert [loaded(), loaded()] == [False, True]


def test_shipped_kernels_are_only_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "SHIPPED", cache)
    assert not loaded()
    use_cache(cache / "empty")
    assert loaded()
    assert not (cache / "empty").exists()
