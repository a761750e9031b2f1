"""Install this checkout for development: by uv, in a seventh of pip's time; by pip where uv fails.

`python .ci/install.py '.[dev]'`, with the python of the environment. uv does not read what pip is
configured with (mirrors, folders of wheels, constraints), so it is told.
"""

import os
import subprocess
import sys

FLAGS = {
    "index-url": "--default-index",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "constraint": "--constraint",
}
ANY_INDEX = ("--index-strategy", "unsafe-best-match")  # as pip takes them


def flags(configured: str) -> list[str]:
    """Return uv's flags for what `pip config list` prints."""
    found: list[str] = []
    for line in configured.splitlines():
        name, _, value = line.partition("=")
        flag = FLAGS.get(name.rpartition(".")[2])
        for each in value.strip("'").replace("\\n", " ").split() if flag else ():
            found += (str(flag), each)
    return found


def main(wanted: list[str]) -> int:
    """Return the exit code."""
    pip = (sys.executable, "-m", "pip")
    what = ("--quiet", "--constraint", "constraints.txt")
    subprocess.run([*pip, "install", "--no-compile", *what, "uv"], check=False)
    listed = subprocess.run([*pip, "config", "list"], stdout=subprocess.PIPE, text=True, check=True)
    uv = (sys.executable, "-m", "uv", "pip", "install", *ANY_INDEX, *flags(listed.stdout))
    env = {"UV_NATIVE_TLS": "true"} | os.environ
    if subprocess.run([*uv, *what, "--editable", *wanted], check=False, env=env).returncode == 0:
        return 0
    by_pip = [*pip, "install", "--no-compile", *what, "--editable", *wanted]
    return subprocess.run(by_pip, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
