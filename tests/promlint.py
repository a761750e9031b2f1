"""What `promtool check metrics` finds in a text of metrics."""

import shutil
import subprocess

import pytest


def complaints(text: str) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here (apt-get install prometheus)")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
