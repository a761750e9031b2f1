"""What the Dockerfile says; test_image.py runs its steps."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.deploy.dockerfile import PROJECT, REPOSITORY, Stage, assignments, read


@pytest.fixture(scope="module")
def builder() -> Stage:
    return read()["builder"]


@pytest.fixture(scope="module")
def runtime() -> Stage:
    return read()["runtime"]


@pytest.fixture(scope="module")
def gpu() -> Stage:
    return read()["gpu"]


def test_all_stages_begin_with_the_same_python_and_the_last_needs_no_gpu() -> None:
    assert [*read()] == ["builder", "gpu-builder", "base", "gpu", "runtime"]
    assert {stage.base for stage in read().values()} == {"python:3.11-slim"}


def test_what_is_copied_is_there_and_is_all_that_is_sent(builder: Stage) -> None:
    copied = {source for text in builder.all("COPY") for source in text.split()[:-1]}
    roots = {root.partition("/")[0] for root in PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]}
    assert roots <= copied
    assert [source for source in copied if not (REPOSITORY / source).exists()] == []
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied


def test_dependencies_come_before_the_sources_and_by_their_hashes(builder: Stage) -> None:
    [file], install = builder.all("COPY")[0].split()[:-1], builder.all("RUN")[0]
    assert install.endswith(f"--require-hashes --requirement {file}")
    names = [name for name, _ in builder.steps]
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


def test_the_runtime_takes_from_the_builder_only(runtime: Stage) -> None:
    assert runtime.all("COPY") == ["--from=builder /opt/logitsieve /opt/logitsieve"]
    assert not any(fnmatch(step, "*pip*install*") for step in runtime.all("RUN"))


def test_it_runs_as_a_fixed_user_that_is_not_root(runtime: Stage) -> None:
    assert runtime.one("USER") == "10001:10001"
    names = [name for name, _ in runtime.steps]
    assert "RUN" not in names[names.index("USER") :]


def test_the_image_for_a_gpu_is_the_other_with_what_a_gpu_needs(gpu: Stage, runtime: Stage) -> None:
    extra = [step for step in gpu.steps if step not in runtime.steps]
    assert [name for name, _ in extra] == ["USER", "RUN", "COPY", "ENV"]
    assert extra[2][1] == "--from=gpu-builder /opt/logitsieve /opt/logitsieve"
    assert [step for step in runtime.steps if step not in gpu.steps] == [
        ("COPY", "--from=builder /opt/logitsieve /opt/logitsieve")
    ]
    install = read()["gpu-builder"].all("RUN")[-1]
    assert install.endswith('--constraint constraints.txt "$(echo /dist/*.whl)[gpu]"')
    assert "gpu" in PROJECT["project"]["optional-dependencies"]
    names = [name for name, _ in gpu.steps]
    assert gpu.user == runtime.user
    assert "RUN" not in names[len(names) - 1 - names[::-1].index("USER") :]


def test_what_a_gpu_compiles_goes_to_the_one_folder_that_can_be_written(gpu: Stage) -> None:
    options = gpu.words("CMD")
    cache = options[options.index("--kernel-cache") + 1]
    assert gpu.environment["TRITON_CACHE_DIR"].startswith(f"{cache}/")
    assert gpu.environment["TMPDIR"] == cache


def test_signals_reach_the_server(runtime: Stage) -> None:
    python, script, action, *command = runtime.words("ENTRYPOINT")
    assert (python, Path(script).name, action) == ("python", "kernels.py", "run")  # becomes it
    assert command == ["logitsieve", "serve"]
    assert runtime.one("STOPSIGNAL") == "SIGTERM"


def test_the_labels_are_the_project(runtime: Stage) -> None:
    labels = assignments(runtime.one("LABEL"))
    prefix = "org.opencontainers.image."
    assert labels[f"{prefix}title"] == PROJECT["project"]["name"]
    assert labels[f"{prefix}version"] == PROJECT["project"]["version"]
    assert labels[f"{prefix}licenses"] == PROJECT["project"]["license"]
