from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

from tests.cli.conftest import PROGRAM, Run
from tests.server.running import WAIT_S


def test_it_says_where_it_is_and_ends_by_a_signal(index: Path) -> None:
    command = [str(PROGRAM), "console", str(index), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("Console at ").partition(" ")[0]
            with urlopen(f"{address}api/overview", timeout=WAIT_S) as reply:
                [model] = json.load(reply)["models"]
            assert model["model"] == "demo@1"
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


def test_no_index(run: Run, tmp_path: Path) -> None:
    assert run("console").exit_code == 2
    result = run("console", tmp_path / "demo" / "1", "--no-browser")
    assert result.exit_code == 1
    assert "no such directory" in result.stderr
