"""The examples of docs/service.md run, and its tables have every option."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from logitsieve.cli.options import read_options
from logitsieve.server import ServeConfig
from tests.server.running import Running
from tests.synthetic import make_hidden

PAGE = Path(__file__).parents[2] / "docs" / "service.md"
TEXT = PAGE.read_text(encoding="utf-8")
FOUND = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
EXAMPLES = [code for code in FOUND if "AdminClient" not in code]  # of a version yet to be built


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(measured: Running, number: int) -> None:
    names = {
        "client": measured.client,
        "decoder": measured.client,
        "hidden": make_hidden(10),
        "first": make_hidden(2),
        "targets": np.arange(10),
        "seeds": np.arange(10),
        "lengths": np.ones(10, np.int32),
    }
    code = EXAMPLES[number].replace("localhost:50051", measured.address)
    exec(compile(code, f"{PAGE.name}, example {number + 1}", "exec"), names)


def test_the_table_has_every_option() -> None:
    flags = re.findall(r"`--([a-z-]+)`", TEXT.partition("## Options")[2].partition("###")[0])
    named = {flag.replace("-", "_") for flag in flags} - {"no_admin", "no_reflection", "config"}
    assert named == {field.name for field in fields(ServeConfig)}


def test_the_example_of_a_file_has_every_option(tmp_path: Path) -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```", TEXT, re.M | re.S)
    file = tmp_path / "serve.toml"
    file.write_text(example, encoding="utf-8")
    options = read_options(file, ServeConfig)
    assert options.keys() == {field.name for field in fields(ServeConfig)}
    config = ServeConfig(**options)
    changed = {
        "models",
        "kernel_cache",
        "host",
        "tls_cert",
        "tls_key",
        "tls_client_ca",
        "tokens",
        "log_format",
    }
    for field in fields(ServeConfig):
        if field.name not in changed:
            assert getattr(config, field.name) == field.default, field.name
