"""Every limit in the table of docs/security.md has its tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMITS = {  # one or two tests of each, without their test_
    "a message": "models_that_were_not_there_at_the_start",
    "rows, `k`, draws, ids of a request": "a_bad_request_names_a_field",
    "a compressed message": "no_message_is_inflated",
    "requests and replies in memory, each byte counted twice": "over_a_real_port",
    "the message of a unary call": "a_message_that_does_not_come_ends_its_call",
    "a reply": "connections_that_do_not_take_replies_are_cut",
    "a health check": "a_long_request_is_refused calls_without_a_message_keep_no_one_out",
    "calls that wait to be read": "calls_that_wait_are_refused_beyond_a_number_of_them",
    "open streams": "streams_beyond_the_most_are_refused watches_give_way",
    "connections of a gRPC port": "idle_connections_leave_files_for_probes_and_open_ones",
    "new connections to gRPC ports": (
        "addresses_that_are_connected_are_found_and_only_they_are_refused"
    ),
    "a connection without a call": "an_idle_connection_may_be_pinged",
    "what is open after SIGTERM, SIGINT or SIGHUP": "calls_without_a_message_do_not_delay_its_end",
    "requests that wait or compute": "no_more_than_max_in_flight_and_the_cancelled_not_computed",
    "metadata of a call": "reflection_is_off_and_metadata_is_bounded",
    "an HTTP request": "what_a_client_is_answered",
    "all HTTP bodies of a port, but for the first 64 KiB of each": (
        "bodies_are_limited_together_and_by_address"
    ),
    "HTTP connections without a request": "connections_that_send_nothing_keep_no_request_out",
    "a question to the console": "huge_questions_are_refused_as_announced_and_as_they_come",
    "a text for `serve-gguf`": "texts_have_a_limit_of_bytes",
    "texts that `serve-gguf` reads at once": "a_long_text_or_a_grammar_keeps_no_short_text_waiting",
    "an abort of llama.cpp in `serve-gguf`": (
        "only_the_guilty_request_fails_and_it_is_refused_from_then_on"
    ),
    "a step of llama.cpp in `serve-gguf`": (
        "an_engine_that_is_stuck_is_ended_and_its_request_fails_alone"
    ),
    "a writer of a loaded version's files": "a_file_that_is_cut_ends_its_version_alone",
    "lines of the log about failures": "a_flood_of_failures_is_cut_off_and_counted",
}


def test_every_limit_of_the_security_page_has_its_tests() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    table = page.partition("## Limits")[2].partition("## ")[0]
    rows = re.findall(r"^\| (.*?) \| ", table, re.MULTILINE)[1:]
    assert rows == [*LIMITS]
    tests = "".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    named = [name for names in LIMITS.values() for name in names.split()]
    assert [name for name in named if f"def test_{name}(" not in tests] == []
