"""The committed stubs and the codes written by hand are those of decoder.proto."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

from logitsieve.api.keywords import NORMALIZER_CODES
from logitsieve.utils.wire_tensors import DType
from logitsieve.v1 import decoder_pb2 as pb

PROTO = Path(__file__).parents[1] / "proto"
SOURCE = "logitsieve/v1/decoder.proto"
FIELD = re.compile(r" +(repeated |optional )?[\w.]+(<.*>)? \w+ = \d+;$")  # not a value of an enum
STUBS = ("decoder_pb2.py", "decoder_pb2.pyi", "decoder_pb2_grpc.py")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stubs")
    kinds = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-I{PROTO}", *kinds, SOURCE]) == 0
    return out / "logitsieve" / "v1"


@pytest.mark.parametrize("stub", STUBS)
def test_stubs_are_what_the_contract_generates(generated: Path, stub: str) -> None:
    committed = PROTO / "logitsieve" / "v1" / stub
    assert committed.read_text() == (generated / stub).read_text(), "run `make proto`"


def test_dtype_and_normalizer_codes() -> None:
    named = {name.removeprefix("DTYPE_"): code for name, code in pb.DType.items() if code}
    assert {dtype.name: dtype.value for dtype in DType} == named
    codes = pb.Normalizer.items()
    named = {name.removeprefix("NORMALIZER_").lower(): code for name, code in codes if code}
    assert named == NORMALIZER_CODES


def test_every_field_stands_on_a_line_of_its_own_under_its_sentence() -> None:
    lines = (PROTO / SOURCE).read_text().splitlines()
    fields = [place for place, line in enumerate(lines) if FIELD.match(line)]
    assert len(fields) == sum(
        len(each.fields) for each in pb.DESCRIPTOR.message_types_by_name.values()
    )
    for place in fields:
        assert re.match(r" +// .*\.$", lines[place - 1]), lines[place]


def test_a_field_of_another_number_breaks_the_contract(tmp_path: Path) -> None:
    old = tmp_path / "proto"
    shutil.copytree(PROTO, old)
    assert breaking(old) == ""
    source = old / SOURCE
    moved, count = re.subn(r"\buint32 k = 3;", "uint32 k = 99;", source.read_text())
    assert count
    source.write_text(moved)
    assert 'field "99" with name "k" on message "TopKRequest" was deleted' in breaking(old)


def breaking(old: Path) -> str:
    """What `buf breaking` prints of the contract since that of a folder."""
    buf = Path(sys.executable).with_name("buf")
    command = [str(buf), "breaking", str(PROTO), "--against", str(old)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(("revision", "compared"), [("HEAD", True), ("", False)])
def test_make_check_compares_with_a_release(revision: str, compared: bool) -> None:
    make = ["make", "-n", "-C", str(PROTO.parent), "check", f"REVISION={revision}"]
    printed = subprocess.run(make, capture_output=True, text=True, timeout=60).stdout
    assert ("buf breaking proto --against '.git#ref=HEAD,subdir=proto'" in printed) == compared
    assert "buf lint proto" in printed
