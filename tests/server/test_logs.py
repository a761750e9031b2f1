import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import open_index
from logitsieve.server.logs import FAILED, INCIDENT, PER_SECOND, FewFailures, configure, event
from logitsieve.server.rpc.status import to_status
from logitsieve.server.security import ReloadingFile, read_api_keys
from tests.server.materials import damage, write_api_keys
from tests.server.messages import GOOD, RawStream, changed, error_of
from tests.server.running import WAIT_S, Loop, Running, administered, config_for, write_model

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "monitoring.md"
SOURCES = REPOSITORY / "server" / "logitsieve" / "server"
# event(log, logging.INFO, "name", and the helpers that take the name first.
CALLS = r"(?:event\(\s*log(?:ger)?,\s*logging\.\w+,|_log\(|log_time\()\s*\"(\w+)\""

log = logging.getLogger("logitsieve.tests")
ROOT, PACKAGE = logging.getLogger(), logging.getLogger("logitsieve")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What is logged as JSON, with the loggers as they were afterwards."""
    before = ROOT.handlers[:], PACKAGE.handlers[:], PACKAGE.level, PACKAGE.propagate
    stream = io.StringIO()
    configure("json", stream=stream)
    yield stream
    ROOT.handlers[:], PACKAGE.handlers[:], PACKAGE.level, PACKAGE.propagate = before
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_of_json(written: io.StringIO) -> None:
    event(log, logging.WARNING, "guard", "AUTO moves\nto full", model="demo", version="1")
    (line,) = lines(written)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "event": "guard",
        "message": "AUTO moves\nto full",
        "model": "demo",
        "version": "1",
    }


def test_an_incident_has_its_id_and_its_traceback(written: io.StringIO) -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        status = to_status(error)
    (line,) = lines(written)
    assert (line["event"], line["incident"]) == ("incident", status.error.incident)
    assert "ValueError: why" in line["exception"]


def test_text_is_the_message_alone_from_its_level_on(written: io.StringIO) -> None:
    for level in ("info", "error"):
        configure("text", level, written)
        event(log, logging.INFO, "start", "gRPC at 127.0.0.1:1", grpc="127.0.0.1:1")
        event(log, logging.ERROR, "load_failed", "failed")
    assert written.getvalue() == "gRPC at 127.0.0.1:1\nfailed\nfailed\n"


def test_warnings_and_lines_of_libraries_are_json_too(written: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)  # within the block, which puts back what it found
        warnings.warn("from a library", UserWarning, stacklevel=1)
        logging.captureWarnings(False)
    logging.getLogger("asyncio").error("a task failed")
    logging.getLogger("grpc._cython.cygrpc").error("so did a call")
    warned, *others = [line["message"] for line in lines(written)]
    assert "UserWarning: from a library" in warned
    assert others == ["a task failed", "so did a call"]


def test_clients_that_leave_write_no_tracebacks(written: io.StringIO) -> None:
    """As gRPC's _handle_exceptions logs it, when the end of a call is seen late."""
    grpcs = logging.getLogger("grpc._cython.cygrpc")
    try:
        raise ValueError("execute_batch")
    except ValueError:
        grpcs.exception("ExecuteBatchError raised in core by servicer method [/any/Call]")
        grpcs.exception("Unexpected [ValueError] raised by servicer method")
    (line,) = lines(written)
    assert line["message"].startswith("Unexpected")


def test_a_flood_of_failures_is_cut_off_and_counted() -> None:
    now, shown = [0.0], 0
    few = FewFailures(lambda: now[0])
    for _ in range(PER_SECOND + 5):
        shown += few.filter(logging.makeLogRecord({"event": FAILED}))
    assert shown == PER_SECOND
    assert few.filter(logging.makeLogRecord({"event": "guard"}))
    incidents = [few.filter(logging.makeLogRecord({"event": INCIDENT})) for _ in range(50)]
    assert sum(incidents) == PER_SECOND
    now[0] = 1.0
    record = logging.makeLogRecord({"event": FAILED, "fields": {"rpc": "TopK"}})
    assert few.filter(record)
    assert record.__dict__["fields"] == {"rpc": "TopK", "not_shown": 5}


def events(stream: io.StringIO, *names: str) -> list[dict[str, Any]]:
    """The events called so, without what changes from run to run."""
    found = [line for line in lines(stream) if line["event"] in names]
    for line in found:
        del line["time"], line["message"]
        if "seconds" in line:
            assert line.pop("seconds") >= 0
    return found


def test_the_life_of_a_version(loop: Loop, tmp_path: Path, written: io.StringIO) -> None:
    first = open_index(write_model(tmp_path)).digest
    of_1: dict[str, Any] = {"level": "info", "model": "demo", "version": "1"}
    of_2 = of_1 | {"version": "2"}
    with administered(loop, config_for(tmp_path)) as served:
        assert events(written, "load", "warm", "available") == [
            of_1 | {"event": "load", "digest": first, "device": "cpu"},
            of_1 | {"event": "warm"},
            of_1 | {"event": "available"},
        ]
        written.truncate(written.seek(0))
        second = open_index(write_model(tmp_path, version=2)).digest
        served.admin.load("demo", 2, alias="stable")
        new = of_2 | {"digest": second}
        alias: dict[str, Any] = {"level": "info", "event": "alias", "model": "demo"}
        assert events(written, "load", "warm", "swap", "alias", "available") == [
            new | {"event": "load", "device": "cpu"},
            of_2 | {"event": "warm"},
            alias | {"alias": "stable", "version": "2"},
            new | {"event": "swap", "replaced": "", "alias": "stable"},
        ]
        served.admin.set_alias("demo", "stable", None)
        served.admin.unload("demo", 1, drain_s=WAIT_S)
        served.admin.load("demo", 2)
        served.admin.unload("demo", 2, drain_s=WAIT_S)
        found = events(written, "alias", "swap", "unload", "drain")
        assert found[2] == alias | {"alias": "stable", "version": None}
        drained = {"event": "drain", "digest": first}
        assert found[3:5] == [of_1 | {"event": "unload"}, of_1 | drained]
        assert found[5] == new | {"event": "swap", "replaced": second, "alias": ""}
        assert of_2 | {"event": "unload"} in found[6:]
        assert new | {"event": "drain"} in found[6:]


def test_a_version_that_cannot_be_loaded(loop: Loop, tmp_path: Path, written: io.StringIO) -> None:
    write_model(tmp_path)
    with administered(loop, config_for(tmp_path)) as served:
        damage(write_model(tmp_path, version=2) / "manifest.json")
        with pytest.raises(InvalidRequest):
            served.admin.load("demo", 2, alias="stable")
        [line] = events(written, "load_failed", "swap", "alias")
    assert (line["level"], line["model"], line["version"]) == ("error", "demo", "2")
    assert "manifest.json" in line["error"]
    assert "exception" not in line


def test_files_that_are_read_again(tmp_path: Path, written: io.StringIO) -> None:
    file = write_api_keys(tmp_path, "read:the-first-of-tokens\n")
    watched = ReloadingFile("api_key_file", lambda: read_api_keys(file), "a file", file)
    file.write_text("nonsense\n")
    assert not watched.renew()
    file.write_text("read:another-of-the-tokens\n")
    assert watched.renew()
    failed, renewed = events(written, "renewed", "not_renewed")
    assert "something else at" in failed.pop("error")
    assert failed == {"level": "error", "event": "not_renewed", "option": "api_key_file"}
    assert renewed == {"level": "info", "event": "renewed", "option": "api_key_file"}
    assert "of-the-tokens" not in written.getvalue()


def test_every_event_is_in_the_documentation() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## The log")[2].partition("## ")[0]
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^- .*", section, re.M))))
    named = {
        name
        for file in SOURCES.rglob("*.py")
        for name in re.findall(CALLS, file.read_text(encoding="utf-8"))
    }
    assert named >= {"load", "warm", "swap", "drain", "alias", "renewed", "guard", "stopping"}
    assert named | {"incident", FAILED, "message"} == documented


def call(server: Running, rpc: str, message: bytes, own: str = "") -> tuple[Any, grpc.Call]:
    metadata = (("x-request-id", own),) if own else ()
    method = server.channel.unary_unary(f"/logitsieve.v1.Decoder/{rpc}")
    found, call = method.with_call(message, timeout=WAIT_S, metadata=metadata)
    return found, call


def trailer(call: Any) -> str:
    return str(dict(call.trailing_metadata()).get("x-request-id", ""))


@pytest.mark.parametrize("own", ["", "mine"])
def test_a_request_has_its_id_and_a_line(server: Running, written: io.StringIO, own: str) -> None:
    assert trailer(call(server, "TopK", GOOD["TopK"].SerializeToString(), own)[1]) == own
    assert written.getvalue() == ""
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "TopK", changed("TopK", k=100000).SerializeToString(), own)
    (line,) = lines(written)
    assert line["request_id"] == trailer(caught.value)
    assert line["request_id"] == own or not own
    about = [line[name] for name in ("event", "rpc", "model", "code", "field")]
    assert about == [FAILED, "TopK", "demo", "INVALID_ARGUMENT", "k"]
    assert error_of(caught.value).field == "k"
    assert "100000" not in written.getvalue()


def test_a_failed_message_is_found_by_its_streams_id(server: Running, written: io.StringIO) -> None:
    stream = RawStream(server.channel, headers=(("x-request-id", "mine"),))
    stream.send(b"\xff")
    stream.half_close()
    assert len(stream.rest()) == 1
    assert trailer(stream.call) == "mine"
    (line,) = lines(written)
    assert (line["rpc"], line["request_id"]) == ("Decode", "mine")
