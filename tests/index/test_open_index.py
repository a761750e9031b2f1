import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.heads import HEADS
from logitsieve.index import HeadEntry, open_index, verify_index
from logitsieve.index.index import assemble
from logitsieve.index.reader import read_contents
from logitsieve.kernels import compile as compile_module
from tests.index.samples import forge, read_manifest, replace_file, spoil_tensor, write_tiny
from tests.refusals import refused, unreadable
from tests.synthetic import decaying, write_heads

CALIBRATION = {"us": {"full": [1.5, 8.0]}}


def test_heads_get_the_matrix_their_part_and_copies_of_addresses(tiny: Path) -> None:
    index = assemble(read_contents(tiny), HEADS, 3)
    full, screen = (index.head(name) for name in ("full", "screen"))
    assert full._softmax is screen._softmax is index.softmax
    assert (full._fallback, screen._fallback) == (None, full)
    assert (full._threads, screen._threads) == (3, 3)
    arrays, softmax = screen._arrays, index.softmax
    assert (dict(full._arrays), {*arrays}) == ({}, {"centroids", "offsets", "ids"})
    assert (full.knobs, screen.knobs["probes"]) == ({}, 1)
    mapped = softmax.weight, softmax.bias, arrays["centroids"]
    copied = arrays["offsets"], arrays["ids"]
    assert not any(array.flags.owndata for array in mapped)
    assert all(array.flags.owndata for array in copied)
    assert not any(array.flags.writeable for array in (*mapped, *copied))
    before = [array.copy() for array in copied]
    file = tiny / "screen.safetensors"
    with file.open("r+b") as stream:  # in place, from `ids` on: a mapping sees it
        stream.seek(-76, os.SEEK_END)
        stream.write(b"\x7f" * 76)
    np.testing.assert_equal(copied, before)


def test_a_head_of_a_later_version_is_left_out(tiny: Path) -> None:
    heads = {**read_manifest(tiny).heads, "later": HeadEntry("screen", {"x": 1})}
    forge(tiny, heads=heads)
    assert assemble(read_contents(tiny), HEADS, 1).heads == ("full", "screen")
    assert verify_index(tiny)

    forge(tiny, default_head="later")
    for as_unreadable in (verify_index, open_index):
        with pytest.raises(IndexUnreadable, match="default_head 'later' is not among full"):
            as_unreadable(tiny)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (HeadEntry("softmax"), "names the part 'softmax', needed: 'screen'"),
        (HeadEntry(), "names the part None, needed: 'screen'"),
        (HeadEntry("screen", {"probes": 0}), "head 'screen': knobs.probes"),
        (HeadEntry("screen", {"warp": 1}), "head 'screen': knobs.warp"),
        (HeadEntry("screen", {"\x1b[2J": 1}), r"head 'screen': knobs.\x1b[2J"),
    ],
)
def test_heads_are_refused_by_name(tiny: Path, entry: HeadEntry, reason: str) -> None:
    forge(tiny, heads={"full": HeadEntry(), "screen": entry})
    for as_unreadable in (verify_index, open_index):
        with unreadable(tiny / "manifest.json", reason):
            as_unreadable(tiny)


def test_verify_index_names_what_it_checked(tmp_path: Path) -> None:
    index = write_tiny(tmp_path / "demo" / "1", calibration=CALIBRATION)
    calls: list[tuple[str, int, int]] = []
    assert verify_index(index, lambda *call: calls.append(call)) == [
        *("manifest.json", "screen.safetensors", "softmax.safetensors", "vocabulary.txt"),
        "calibration.json",
    ]
    assert calls[-1][1] == calls[-1][2]


@pytest.mark.parametrize(
    ("field", "value"),
    [("device", "tpu"), ("verify", "none"), *[("threads", wrong) for wrong in (0, 1.0, True)]],
)
def test_wrong_arguments_are_named(tiny: Path, field: str, value: Any) -> None:
    with refused(field):
        open_index(tiny, **{field: value})


@pytest.mark.parametrize(
    ("installed", "allowed"),
    [
        ("cuda = logitsieve.gpu.open:gpu_backend", "cpu, cuda, cuda:0, cuda:1, ..."),
        ("", "cpu (the installed logitsieve declares no other device: install it again)"),
    ],
)
def test_a_device_needs_an_entry_point(
    installed: str, allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "logitsieve-9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: logitsieve\nVersion: 9\n")
    (metadata / "entry_points.txt").write_text(f"[logitsieve.backends]\n{installed}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        open_index(tmp_path, device="tpu:1")
    assert (refused.value.got, refused.value.allowed) == ("'tpu:1'", allowed)


def test_a_verified_index_is_not_verified_again(tiny: Path, kernel_cache: Path) -> None:
    def opening() -> int:
        calls = list[tuple[str, int, int]]()
        open_index(tiny, kernel_cache=kernel_cache, progress=lambda *c: calls.append(c)).close()
        return len(calls)

    assert opening()
    assert not opening()
    file = tiny / "screen.safetensors"
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    assert opening()
    data = file.read_bytes()
    replace_file(file, data.replace(b"\x00\x00\x80\x3f", b"\x00\x00\x80\x3e"))
    with pytest.raises(IndexUnreadable, match="damaged"):
        opening()


def test_a_failed_verification_is_not_remembered(tiny: Path, kernel_cache: Path) -> None:
    spoil_tensor(tiny, "softmax", "weight", lambda weight: weight.fill(np.nan))
    for _ in range(2):
        with pytest.raises(IndexUnreadable, match=r"holds the matrix|not finite"):
            open_index(tiny, kernel_cache=kernel_cache)


def test_sizes_alone_trusts_numbers_but_no_address(tiny: Path, kernel_cache: Path) -> None:
    manifest = (tiny / "manifest.json").read_bytes()
    spoil_tensor(tiny, "screen", "centroids", lambda centroids: centroids.fill(1))
    replace_file(tiny / "manifest.json", manifest)
    with pytest.raises(IndexUnreadable, match="damaged"):
        open_index(tiny, kernel_cache=kernel_cache)
    open_index(tiny, verify="sizes", kernel_cache=kernel_cache).close()

    spoil_tensor(tiny, "screen", "ids", lambda ids: ids.fill(1 << 20))
    with pytest.raises(IndexUnreadable, match="ids reach"):
        open_index(tiny, verify="sizes", kernel_cache=kernel_cache)


def test_an_unwritable_memory(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "_cache", {})  # where kernels are kept, afterwards again
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "file" / "cache"
    calls: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # if a kernel is compiled here
        open_index(tiny, kernel_cache=folder).close()
    open_index(tiny, kernel_cache=folder, progress=lambda *call: calls.append(call[1])).close()
    assert calls


@pytest.mark.parametrize(("stored", "all_rows"), [({}, False), ({"fallback": "full"}, True)])
def test_the_fallback_is_the_one_that_the_manifest_names(
    tmp_path: Path, stored: dict[str, Any], all_rows: bool
) -> None:
    softmax, hidden_states = decaying(
        2000, 96, rows=3
    )  # few directions count: bounds leave few rows
    path = write_heads(tmp_path / "lm" / "1", softmax, "screen", "sketch", config=stored)
    with open_index(path) as index:
        top = index.head(escalate=1.0).topk(hidden_states, 5)
    assert top.proven.all()
    assert (top.scanned == 2000).all() == all_rows
