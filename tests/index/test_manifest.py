import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index import FileEntry, HeadEntry, Manifest
from logitsieve.index.manifest import ShardOf, canonical, is_name, is_version
from tests.index.samples import ESCAPES, put
from tests.refusals import unreadable

SHA = hashlib.sha256(b"").hexdigest()
MANIFEST = Manifest(
    vocab_size=7,
    dim=3,
    softmax_sha256=SHA,
    parts={"softmax": FileEntry("softmax.safetensors", 10, SHA)},
    heads={"full": HeadEntry(), "screen": HeadEntry("softmax", {"probes": 2}, {"c": [1, None]})},
    default_head="screen",
    vocabulary=FileEntry("vocabulary.txt", 5, SHA),
    config={"name": "naïve", "rate": 0.1},
    seeds={"fit": 1},
)


SHARD = ShardOf(first=256, vocab_size=263, softmax_sha256=SHA)


@pytest.mark.parametrize("first", [0, 256])
def test_reads_what_it_wrote_of_a_shard(first: int) -> None:
    manifest = replace(MANIFEST, shard=replace(SHARD, first=first))
    assert Manifest.from_json(manifest.file_bytes()) == manifest


def test_reads_what_it_wrote_and_what_its_digest_depends_on() -> None:
    read = Manifest.from_json(MANIFEST.file_bytes())
    assert read == MANIFEST
    assert read.digest == MANIFEST.digest
    largest = replace(MANIFEST, dim=2**31 - 1, vocabulary=FileEntry("words", 2**63 - 1, SHA))
    assert Manifest.from_json(largest.file_bytes()) == largest
    fields = json.loads(MANIFEST.file_bytes())
    assert fields.pop("digest") == MANIFEST.digest
    assert canonical(fields) == MANIFEST.to_json()
    assert hashlib.sha256(MANIFEST.to_json()).hexdigest() == MANIFEST.digest
    heads = dict(reversed(list(MANIFEST.heads.items())))
    heads["screen"] = replace(heads["screen"], knobs={"probes": 2.0})
    assert replace(MANIFEST, heads=heads).digest == MANIFEST.digest


def test_the_digest_depends_on_every_field() -> None:
    changes: dict[str, Any] = {
        "vocab_size": 8,
        "dim": 4,
        "softmax_sha256": SHA[::-1],
        "parts": {**MANIFEST.parts, "svd": FileEntry("svd.safetensors", 1, SHA)},
        "heads": {"full": HeadEntry(), "screen": HeadEntry("softmax", {"probes": 3})},
        "default_head": "full",
        "vocabulary": None,
        "config": {},
        "seeds": {"fit": 2},
        "format_version": 4,
        "dtype": "BF16",
        "shard": SHARD,
    }
    assert changes.keys() == vars(MANIFEST).keys()
    digests = {replace(MANIFEST, **{field: value}).digest for field, value in changes.items()}
    assert len(digests | {MANIFEST.digest}) == len(changes) + 1


Fields = dict[str, Any]


def edited(change: Callable[[Fields], object]) -> bytes:
    """A manifest whose digest fits, with one field changed."""
    fields = json.loads(MANIFEST.to_json())
    change(fields)
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return canonical({**fields, "digest": hashlib.sha256(text).hexdigest()}) + b"\n"


def shard(**changes: Any) -> bytes:
    return replace(MANIFEST, shard=replace(SHARD, **changes)).file_bytes()


ESCAPED: list[tuple[Any, ...]] = [
    *[(field, ESCAPES) for field in ("format_version", "vocab_size", "default_head")],
    *[("parts", ESCAPES, {}), ("heads", ESCAPES, {}), ("seeds", ESCAPES, "x")],
    *[(ESCAPES, 1), ("heads", "full", "knobs", ESCAPES, 1)],
]
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a shard of nothing": (edited(put("shard", to=None)), "canonical"),
    "a shard from -256": (shard(first=-256), "shard.first: got -256"),
    "a shard from 16": (shard(first=16), "first: got 16, allowed: 0 or a multiple of 256"),
    "a shard beyond the end": (shard(first=512), "ends beyond 263 rows"),
    "a shard of a smaller whole": (shard(vocab_size=262), "ends beyond 262 rows"),
    "a shard of an empty whole": (shard(vocab_size=0), "shard.vocab_size"),
    "a shard of no matrix": (shard(softmax_sha256=""), "shard.softmax_sha256"),
    "empty": (b"", "Expecting value"),
    "not JSON": (b"{", "Expecting"),
    "not UTF-8": (b'"\xff"', "decode"),
    "nested deeply": (b"[" * 200_000, "nested too deeply"),
    "a list": (b"[]\n", "not a JSON object"),
    "no version": (b"{}\n", "format_version None"),
    "NaN": (b'{"format_version":3,"config":NaN}', "not JSON compliant"),
    "a number of 5,000 digits": (b'{"a":' + b"9" * 5000 + b"}", "integer string"),
    **{
        f"version {it!r}": (edited(put("format_version", to=it)), f"{it!r} is not 3")
        for it in (1, 2, True, "3")
    },
    "a changed seed": (MANIFEST.file_bytes().replace(b'"fit":1', b'"fit":2'), "digest"),
    "no digest": (MANIFEST.to_json(), "digest"),
    "spaces": (MANIFEST.file_bytes() + b" ", "canonical"),
    "no line end": (MANIFEST.file_bytes()[:-1], "canonical"),
    "a key twice": (MANIFEST.file_bytes().replace(b"{", b'{"dim":3,', 1), "canonical"),
    "another dtype": (edited(put("dtype", to="F64")), "dtype: got 'F64', allowed: F32, F16, BF16"),
    "a dtype list": (edited(put("dtype", to=["F16"])), "dtype: got ['F16'], allowed"),
    "no dtype": (edited(lambda fields: fields.pop("dtype")), "missing or unknown: dtype"),
    "a field more": (edited(put("colour", to="red")), "unknown: colour"),
    "a field less": (edited(lambda fields: fields.pop("seeds")), "seeds"),
    "V = 0": (edited(put("vocab_size", to=0)), "vocab_size: got 0"),
    "V = 2^31": (edited(put("vocab_size", to=2**31)), "vocab_size"),
    "D negative": (edited(put("dim", to=-3)), "dim: got -3"),
    "D as a float": (edited(put("dim", to=3.0)), "dim: got 3.0"),
    "a short sha256": (edited(put("softmax_sha256", to=SHA[1:])), "64 hex digits"),
    "parts as a list": (edited(put("parts", to=[])), "parts: got [], allowed: a JSON object"),
    "no softmax": (edited(put("parts", to={})), "the part 'softmax'"),
    **{
        f"a part at {to}": (edited(put("parts", "softmax", "file", to=to)), reason)
        for to, reason in (
            *[(elsewhere, "file") for elsewhere in ("../../etc/passwd", "/etc/passwd", "..")],
            *[(taken, "share a file") for taken in ("manifest.json", "vocabulary.txt")],
        )
    },
    "a negative size": (edited(put("parts", "softmax", "size", to=-1)), "size: got -1"),
    "a size of 2^63": (edited(put("parts", "softmax", "size", to=2**63)), "size: got 9223"),
    "a part without size": (
        edited(put("parts", "softmax", to={"file": "a", "sha256": SHA})),
        "needs exactly file, sha256, size",
    ),
    "a bad part name": (edited(lambda f: f["parts"].update({"A": f["parts"]["softmax"]})), "'A'"),
    "no full": (edited(lambda fields: fields["heads"].pop("full")), "the head 'full'"),
    "a head named with spaces": (
        edited(put("heads", "a b", to={"part": None, "knobs": {}, "config": {}})),
        "'a b' cannot name a head",
    ),
    "a head without knobs": (edited(put("heads", "full", to={"part": None})), "needs exactly"),
    "a head of no part": (edited(put("heads", "screen", "part", to="lost")), "'lost'"),
    "a knob as text": (edited(put("heads", "screen", "knobs", "probes", to="2")), "probes"),
    "an infinite knob": (
        MANIFEST.file_bytes().replace(b'"probes":2.0', b'"probes":1e999'),
        "not JSON compliant",
    ),
    "no such default": (edited(put("default_head", to="svd")), "'svd' is not among"),
    "a seed of 1.5": (edited(put("seeds", "fit", to=1.5)), "fit: got 1.5, allowed: an integer"),
    **{
        f"escapes {number}": (edited(put(*path, to=to)), "")
        for number, (*path, to) in enumerate(ESCAPED)
    },
    "words as text": (edited(put("vocabulary", to="words")), "vocabulary: got 'words', allowed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifests_are_refused_by_name(name: str) -> None:
    data, reason = HOSTILE[name]
    with unreadable(Path("models/demo/1/manifest.json"), reason):
        Manifest.from_json(data, Path("models/demo/1/manifest.json"))


def test_every_bit_flip_is_refused() -> None:
    data = MANIFEST.file_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IndexUnreadable):
            Manifest.from_json(bytes(flipped))


def test_names_and_versions() -> None:
    no_names: Any = ("", ".", "-a", ".tmp-1", "A", "a/b", "a\n", "é", "a" * 65, 1)
    assert all(map(is_name, ("a", "0", "lm-docs.v2_x", "a" * 64)))
    assert not any(map(is_name, no_names))
    assert all(is_version(text) for text in ("1", "10", "9" * 18))
    assert not any(is_version(text) for text in ("", "0", "01", "-1", "1.0", "1\n", "²", "٣"))
