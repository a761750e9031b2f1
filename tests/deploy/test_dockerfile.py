"""The lines of the Dockerfile; test_built_image.py builds and runs it."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.deploy.dockerfile import PROJECT, REPOSITORY, assignments, read

STAGES = read()
BUILDER, RUNTIME, GPU = STAGES["builder"], STAGES["runtime"], STAGES["gpu"]


def test_stages_begin_alike_and_what_is_copied_is_all_that_is_sent() -> None:
    assert [*STAGES] == ["builder", "gpu-builder", "base", "gpu", "runtime"]
    assert {stage.base for stage in STAGES.values()} == {"python:3.11-slim"}
    copied = {source for text in BUILDER.all("COPY") for source in text.split()[:-1]}
    roots = {root.partition("/")[0] for root in PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]}
    assert roots <= copied
    assert [source for source in copied if not (REPOSITORY / source).exists()] == []
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied


def test_dependencies_come_before_the_sources_and_by_their_hashes() -> None:
    [file], install = BUILDER.all("COPY")[0].split()[:-1], BUILDER.all("RUN")[0]
    assert install.endswith(f"--require-hashes --requirement {file}")
    names = [name for name, _ in BUILDER.steps]
    assert names.index("RUN") < [i for i, name in enumerate(names) if name == "COPY"][1]
    locked = {}
    for line in re.sub(r"\\\n\s*", "", (REPOSITORY / file).read_text("utf-8")).splitlines():
        if not line.startswith("#"):
            found = re.fullmatch(r"([\w.-]+)==(\S+)(?: --hash=sha256:[0-9a-f]{64})+", line)
            assert found, line
            locked[found[1]] = found[2]
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = PROJECT["project"]["optional-dependencies"]
    needed = [*PROJECT["project"]["dependencies"], *extras["server"], *extras["console"]]
    for name in (re.split(r"[\[<>=]", each)[0] for each in needed):
        if name != "logitsieve":
            assert locked[name] == pinned.get(name, locked[name])


@pytest.mark.parametrize(("extras", "installed"), [("", "[console]"), ("faiss", "[console,faiss]")])
def test_an_extra_comes_on_request(extras: str, installed: str) -> None:
    assert BUILDER.all("ARG") == ['EXTRAS=""']
    [named] = re.findall(r"\[.*\]", BUILDER.all("RUN")[2])
    command = ["sh", "-c", f'echo "{named}"']
    done = subprocess.run(command, env={"EXTRAS": extras}, capture_output=True, text=True)
    assert done.stdout == f"{installed}\n"
    assert set(re.findall(r"\w+", installed)) <= PROJECT["project"]["optional-dependencies"].keys()


def test_the_runtime_takes_from_the_builder_only_and_runs_as_a_fixed_user() -> None:
    assert RUNTIME.all("COPY") == ["--from=builder /opt/logitsieve /opt/logitsieve"]
    assert not any(fnmatch(step, "*pip*install*") for step in RUNTIME.all("RUN"))
    assert RUNTIME.one("USER") == "10001:10001"
    names = [name for name, _ in RUNTIME.steps]
    assert "RUN" not in names[names.index("USER") :]


def test_signals_reach_the_server_and_labels_are_the_project() -> None:
    python, script, action, *command = RUNTIME.words("ENTRYPOINT")
    assert (python, Path(script).name, action) == ("python", "kernels.py", "run")  # becomes it
    assert command == ["logitsieve", "serve"]
    assert RUNTIME.one("STOPSIGNAL") == "SIGTERM"
    project, prefix = PROJECT["project"], "org.opencontainers.image."
    named = {"title": "name", "version": "version", "licenses": "license"}
    expected = {f"{prefix}{label}": project[name] for label, name in named.items()}
    assert expected.items() <= assignments(RUNTIME.one("LABEL")).items()


def test_the_image_for_a_gpu_is_the_other_with_what_a_gpu_needs() -> None:
    extra = [step for step in GPU.steps if step not in RUNTIME.steps]
    assert [name for name, _ in extra] == ["USER", "RUN", "COPY", "ENV"]
    assert extra[2][1] == "--from=gpu-builder /opt/logitsieve /opt/logitsieve"
    assert [step for step in RUNTIME.steps if step not in GPU.steps] == [
        ("COPY", "--from=builder /opt/logitsieve /opt/logitsieve")
    ]
    install = STAGES["gpu-builder"].all("RUN")[-1]
    assert install.endswith('--constraint constraints.txt "$(echo /dist/*.whl)[gpu]"')
    assert "gpu" in PROJECT["project"]["optional-dependencies"]
    names = [name for name, _ in GPU.steps]
    assert GPU.user == RUNTIME.user
    assert "RUN" not in names[len(names) - 1 - names[::-1].index("USER") :]


def test_what_a_gpu_compiles_goes_to_the_one_folder_that_can_be_written() -> None:
    options = GPU.words("CMD")
    cache = options[options.index("--kernel-cache") + 1]
    assert GPU.environment["TRITON_CACHE_DIR"].startswith(f"{cache}/")
    assert GPU.environment["TMPDIR"] == cache
