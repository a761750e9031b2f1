import ctypes.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.host import tensor_layout
from logitsieve.llamacpp.xllamacpp import XLlamaCpp, xllamacpp


@pytest.mark.usefixtures("llama_wheel")
def test_the_wheel_fits_is_named_and_keeps_its_messages(capfd: pytest.CaptureFixture[str]) -> None:
    loaded = xllamacpp()
    assert loaded.name.startswith("xllamacpp 20")
    assert loaded is xllamacpp()
    assert loaded.context.hook % 8 == 0
    with loaded.messages() as lines:
        assert not loaded.load(Path("/nowhere.gguf"))
    assert any("nowhere" in line for line in lines)
    assert len(lines) <= 5
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("llama_wheel")
@pytest.mark.parametrize(
    ("setting", "turns"),
    [({}, "5000"), ({"OMP_WAIT_POLICY": "passive"}, "0"), ({"GOMP_SPINCOUNT": "7"}, "7")],
)
def test_idle_threads_wait_briefly_unless_told(setting: dict[str, str], turns: str) -> None:
    code = "import os; from logitsieve.llamacpp.xllamacpp import xllamacpp; before = {**os.environ}"
    code += "; xllamacpp(); assert before == {**os.environ}"
    left = {name: os.environ[name] for name in os.environ if not name.startswith(("OMP", "GOMP"))}
    environment, command = {**left, "OMP_DISPLAY_ENV": "verbose", **setting}, [sys.executable, "-c"]
    told = subprocess.run(
        [*command, code], env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    assert f"GOMP_SPINCOUNT = '{turns}'" in told.stderr


@pytest.mark.usefixtures("llama_wheel")
def test_a_layout_is_found_in_clean_memory() -> None:
    """What a heap was used for before may look like a field."""

    class Recording:
        clean = False

        def __getattr__(self, name: str) -> Any:
            return getattr(xllamacpp().functions, name)

        def ggml_init(self, arena: Any) -> Any:
            self.clean = not any(ctypes.string_at(arena.memory, arena.bytes))
            return xllamacpp().functions.ggml_init(arena)

    functions = Recording()
    assert tensor_layout(functions) == xllamacpp().tensor
    assert functions.clean


def test_a_library_without_the_functions_is_refused_by_name() -> None:
    other = ctypes.util.find_library("m")
    if other is None:
        pytest.skip("no libm to stand for another library")
    with pytest.raises(InvalidRequest, match=r"libm of 2026: no function llama_"):
        XLlamaCpp(Path(other), "libm of 2026")
