import ctypes.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.library import _tensor_layout, library, load, messages


@pytest.mark.usefixtures("llama_wheel")
def test_the_wheel_fits_is_named_and_keeps_its_messages(capfd: pytest.CaptureFixture[str]) -> None:
    loaded = library()
    assert loaded.name.startswith("xllamacpp 20")
    assert loaded is library()
    assert loaded.context.hook % 8 == 0
    api = library().functions
    with messages(api) as lines:
        parameters = api.llama_model_default_params()
        assert not api.llama_model_load_from_file(b"/nowhere.gguf", parameters)
    assert any("nowhere" in line for line in lines)
    assert len(lines) <= 5
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("llama_wheel")
@pytest.mark.parametrize(
    ("setting", "turns"),
    [({}, "5000"), ({"OMP_WAIT_POLICY": "passive"}, "0"), ({"GOMP_SPINCOUNT": "7"}, "7")],
)
def test_idle_threads_wait_briefly_unless_told(setting: dict[str, str], turns: str) -> None:
    code = "import os; from logitsieve.llamacpp.library import library; before = {**os.environ}"
    code += "; library(); assert before == {**os.environ}"
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
            return getattr(library().functions, name)

        def ggml_init(self, arena: Any) -> Any:
            self.clean = not any(ctypes.string_at(arena.memory, arena.bytes))
            return library().functions.ggml_init(arena)

    functions = Recording()
    assert _tensor_layout(functions) == library().tensor
    assert functions.clean


def test_a_library_without_the_functions_is_refused_by_name() -> None:
    other = ctypes.util.find_library("m")
    if other is None:
        pytest.skip("no libm to stand for another library")
    with pytest.raises(InvalidRequest, match=r"libm of 2026: no function llama_"):
        load(Path(other), "libm of 2026")
