import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import MissingExtra
from logitsieve.cli import background
from logitsieve.cli.app import BAD_INPUT
from logitsieve.cli.background import BackgroundIndex, cached_index, index_of_cache
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.llamacpp import GgufModel
from tests.llamacpp.small_model import Make

ENDLESS = "import time; open({started!r}, 'w').close(); time.sleep(600)"
COPIED = "import shutil, sys; shutil.copytree({index!r}, sys.argv[-1])"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(background, "default_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(background, "NICENESS", 0)
    return tmp_path / "cache"


def opened(path: Path) -> LocalDecoder:
    return LocalDecoder(open_index(path))


def files(cache: Path) -> list[str]:
    """Everything below the folder of indexes, but what an index holds."""
    found = sorted(path.relative_to(cache) for path in cache.glob("indexes/**/*"))
    return [str(path) for path in found if len(path.parts) < 4]


def test_half_an_index_is_removed(make_gguf: Make, cache: Path, tmp_path: Path, build: Any) -> None:
    started = tmp_path / "started"
    build(ENDLESS.format(started=str(started)))
    out = cache / "indexes" / "0" / "1"
    making = BackgroundIndex(make_gguf(), out, opened)

    def asked_to_end() -> None:
        with making:
            while not started.exists():
                time.sleep(0.01)
            assert (making.decoder, making.error) == (None, "")
            assert len(files(cache)) == 2
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    with pytest.raises(SystemExit):
        asked_to_end()
    assert making.decoder is None
    assert making.seconds > 0
    assert files(cache) == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('error: out of luck')", "error: out of luck"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
def test_a_failure_is_told(make_gguf: Make, cache: Path, build: Any, code: str, said: str) -> None:
    build(code)
    with BackgroundIndex(make_gguf(), cache / "indexes" / "0" / "1", opened) as making:
        making.wait()
        assert making.error == said
    assert files(cache) == []


def test_an_index_in_the_cache_that_is_spoiled_is_made_again(
    make_gguf: Make, gguf_index: Path, build: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = GgufModel(make_gguf())
    build(COPIED.format(index=str(gguf_index)))
    cached_index(model).mkdir(parents=True)
    decoder, making = index_of_cache(model, threads=1)
    assert decoder is None
    assert making is not None
    with making:
        making.wait()
        assert making.decoder is not None
    assert ": it is made again." in capsys.readouterr().err


def test_an_index_that_others_could_write_is_not_read(
    make_gguf: Make, gguf_index: Path, cache: Path, build: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = GgufModel(make_gguf())
    build(COPIED.format(index=str(gguf_index)))
    with BackgroundIndex(model.path, cached_index(model), opened) as making:
        making.wait()
    for folder in (cached_index(model).parent, cache / "indexes", cache):
        folder.chmod(0o777)
        assert index_of_cache(model, threads=1) == (None, None)
        assert f"chmod go-w: '{folder}'. " in capsys.readouterr().err
        folder.chmod(0o700)
    decoder, _ = index_of_cache(model, threads=1)
    assert decoder is not None


def test_another_made_it_first(make_gguf: Make, gguf_index: Path, cache: Path, build: Any) -> None:
    build(COPIED.format(index=str(gguf_index)))
    out = cache / "indexes" / "0" / "1"
    for _ in range(2):
        with BackgroundIndex(make_gguf(), out, opened) as making:
            making.wait()
            assert making.decoder is not None
    assert files(cache) == ["indexes/0", "indexes/0/1"]


def test_without_what_builds_or_where_nothing_can_be_written(
    make_gguf: Make, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    cache.write_text("a file")
    assert index_of_cache(GgufModel(make_gguf()), threads=1) == (None, None)
    assert "No index can be made: " in capsys.readouterr().err

    def missing(extra: str, *modules: str) -> None:
        raise MissingExtra(modules[-1], extra)

    monkeypatch.setattr(background, "require", missing)
    assert index_of_cache(GgufModel(make_gguf()), threads=1) == (None, None)
    assert "pip install 'logitsieve[builder] @ file:" in capsys.readouterr().err


def test_the_process_ends_with_the_exit_code_of_build(tmp_path: Path) -> None:
    assert background.BUILD[1:3] == ("-m", background.__name__)
    out = tmp_path / "lm" / "1"
    missing = ["build", "--weight", str(tmp_path / "none.npy"), "--out", str(out)]
    assert background.build_and_compile(missing) == BAD_INPUT
    assert not out.exists()


@pytest.mark.system
def test_the_command_that_builds(
    make_gguf: Make, llama_wheel: None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, _, *module = background.BUILD
    monkeypatch.setattr(background, "BUILD", (python, "-m", "tests.brief", *module))
    with BackgroundIndex(make_gguf(), cached_index(GgufModel(make_gguf())), opened) as making:
        making.wait()
        assert making.error == ""
        assert making.decoder is not None
        assert making.decoder.index.heads == ("full", "sketch")
