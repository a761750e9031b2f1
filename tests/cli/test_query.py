"""`logitsieve query`, over a real port."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.query import ServerOptions
from logitsieve.client import AdminClient
from logitsieve.index import open_index
from tests.cli.conftest import Run
from tests.synthetic import make_hidden


class Received:
    """A client that only keeps its arguments."""

    def __init__(self, address: str, **options: Any) -> None:
        self.address, self.options = address, options


def opened(**options: Any) -> Any:
    made: type[AdminClient] = Received  # type: ignore[assignment]
    return ServerOptions(**options).open(made)


def test_a_client_is_opened_with_what_the_options_say(tmp_path: Path) -> None:
    client = opened(address="server:1")
    assert client.address == "server:1"
    assert client.options == {"timeout_s": 5.0, "tls": None, "api_key": None}
    assert opened(tls=True).options["tls"].ca is None
    (tmp_path / "api_key").write_text("secret\n")
    assert opened(api_key_file=tmp_path / "api_key").options["api_key"] == "secret"
    (tmp_path / "api_key").write_bytes(b"\xff")
    with pytest.raises(
        InvalidRequest, match=r"api_key_file: got .*allowed: a file with an API key"
    ):
        opened(api_key_file=tmp_path / "api_key")


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key"])
def test_a_file_of_tls_asks_for_it(name: str) -> None:
    tls = opened(**{name: Path("file.pem")}).options["tls"]
    assert getattr(tls, name.removeprefix("tls_")) == Path("file.pem")


def test_the_models_of_a_server_are_listed(run: Run, address: str) -> None:
    [model] = json.loads(run("query", "models", "--address", address, "--json").stdout)
    assert (model["name"], model["version"], model["state"]) == ("demo", "1", "available")
    assert model["heads"] == ["full", "screen"]
    shown = run("query", "models", "--address", address).stdout
    assert "full, screen" in shown
    run("query", "models", "--address", "127.0.0.1:1", "--timeout-s", 0.5, code=1, says="error: ")


def test_a_query_answers_as_the_index(
    run: Run, address: str, models: Path, hidden_states: Path
) -> None:
    options: tuple[object, ...] = ("-k", 4, "--knob", "probes=2", "--head", "screen", "--json")
    reply = json.loads(
        run("query", "--address", address, "--hidden-states", hidden_states, *options).stdout
    )
    top = open_index(models / "demo" / "1").head("screen", probes=2).topk(make_hidden(3), 4)
    assert [[t["id"] for t in row["top"]] for row in reply["rows"]] == top.ids.tolist()
    assert [[t["logit"] for t in row["top"]] for row in reply["rows"]] == top.logits.tolist()
    assert [row["scanned"] for row in reply["rows"]] == top.scanned.tolist()
    assert [row["max_error"] for row in reply["rows"]] == [1.0] * 3
    assert (reply["head"], reply["knobs"]["probes"]) == ("screen", 2)
    assert all(t["log_prob"] < 0 for row in reply["rows"] for t in row["top"])
    for draws in ([], ["--num-samples", 1]):
        options = ("--hidden-states", hidden_states, "--width", 1e-4, *draws, "--json")
        reply = json.loads(run("query", "--address", address, *options).stdout)
        assert reply["normalizer"] == "full"  # the index has no `sketch`
    options = (
        "--hidden-states",
        hidden_states,
        "--num-samples",
        3,
        "--seed",
        5,
        "--temperature",
        2,
        "--json",
    )
    one, again = (json.loads(run("query", "--address", address, *options).stdout) for _ in range(2))
    assert one == again
    assert [len(row["draws"]) for row in one["rows"]] == [3, 3, 3]
    assert all(draw["log_prob"] < 0 for row in one["rows"] for draw in row["draws"])
    shown = run("query", "--address", address, *options[:-1]).stdout
    assert "draw" in shown
    assert str(one["rows"][0]["draws"][0]["id"]) in shown


@pytest.mark.parametrize("asked", [["--exact"], ["--min-precision", 1], ["--min-precision", 0.5]])
def test_auto_answers_queries(
    run: Run, address: str, hidden_states: Path, asked: list[object]
) -> None:
    options = ("--hidden-states", hidden_states, *asked, "--json")
    reply = json.loads(run("query", "--address", address, *options).stdout)
    assert reply["head"] == "full"  # the index was not calibrated
    assert all(row["proven"] for row in reply["rows"])


def test_words_are_shown_as_they_are(
    run: Run, address: str, hidden_states: Path, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    options = ("--hidden-states", hidden_states, "--vocab-file", words, "-k", 2)
    own = "".join(f"<b>word{number}\n" for number in range(300))
    for text in (own, own.removesuffix("\n")):
        words.write_text(text)
        result = run("query", "--address", address, "--model", "demo@1", *options)
        assert "<b>word" in result.stdout
    words.write_text("the\n")
    said = "vocab_file: got 1 lines, allowed: 300, one for each id of demo@1"
    run("query", "--address", address, *options, code=2, says=said)
    words.write_text(own.replace("word7\n", "other\n"))
    said = "vocab_file: got other words, sha256 "
    assert run("query", "--address", address, *options, code=2, says=said).stdout == ""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-k", 0], "-k"),
        (["-k", 301], "k: got"),
        (["--model", "other"], "other"),
        (["--head", "svd"], "head"),
        (["--knob", "speed=1"], "speed"),
        (["--vocab-file", "nowhere.txt"], "vocab_file: got nowhere.txt"),
        (["--normalizer", "none"], "--normalizer"),
        (["--width", 0], "width: got 0.0, allowed: a number, 1e-09 to 100"),
        (["--num-samples", -1], "--num-samples"),
        (["--num-samples", 1, "--seed", 1 << 64], "seeds: got"),
        (["--min-precision", 0.9, "--exact"], "min_precision: got 0.9"),
        (["--exact", "--head", "screen"], "head: got 'screen'"),
        (["--timeout-s", "nan"], "error: timeout_s: got "),
        (["--temperature", "1e-6"], "error: temperature: got "),
    ],
)
def test_wrong_options(
    run: Run, address: str, hidden_states: Path, options: list[object], reason: str
) -> None:
    given = ("--address", address, "--hidden-states", hidden_states)
    run("query", *given, *options, code=2, says=reason)


def test_files_that_hold_no_rows(run: Run, address: str, tmp_path: Path) -> None:
    np.save(tmp_path / "narrow.npy", np.ones((2, 23), np.float32))
    np.save(tmp_path / "integers.npy", np.ones((2, 24), np.int64))
    np.save(tmp_path / "object.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("text")
    np.savez(tmp_path / "many.npz", a=np.ones(24))
    for name in ("narrow.npy", "integers.npy", "object.npy", "text.npy", "many.npz", "absent.npy"):
        options = ("--address", address, "--hidden-states", tmp_path / name)
        run("query", *options, code=2, says="error: hidden_states: got")


def test_draws_without_replacement_differ(run: Run, address: str, hidden_states: Path) -> None:
    options: tuple[object, ...] = ("--num-samples", 5, "--no-replace", "--seed", 1, "--json")
    reply = json.loads(
        run("query", "--address", address, "--hidden-states", hidden_states, *options).stdout
    )
    for row in reply["rows"]:
        assert len({one["id"] for one in row["draws"]}) == 5
        perturbed = [one["perturbed"] for one in row["draws"]]
        assert perturbed == sorted(perturbed, reverse=True)
