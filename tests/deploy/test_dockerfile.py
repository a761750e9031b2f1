"""The lines of the Dockerfile; test_built_image.py builds and runs it."""

import os
import re
import subprocess
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.dockerfile import PROJECT, REPOSITORY, assignments, read

ON_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "extra": ""}
STAGES = read()
BUILDER, RUNTIME, GPU = STAGES["builder"], STAGES["runtime"], STAGES["gpu"]


def test_stages_begin_alike_and_what_is_copied_is_all_that_is_sent() -> None:
    assert [*STAGES] == ["builder", "gpu-builder", "base", "gpu", "runtime"]
    assert {stage.base for stage in STAGES.values()} == {"python:3.11-slim"}
    copied = {source for text in BUILDER.all("COPY") for source in text.split()[:-1]}
    roots = {root.partition("/")[0] for root in PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]}
    assert roots <= copied
    assert [source for source in copied if not [*REPOSITORY.glob(source)]] == []
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied


def locked(name: str) -> dict[str, str]:
    """Versions in a file of deploy/image, each with its hashes."""
    found = {}
    text = (REPOSITORY / "deploy" / "image" / f"{name}.txt").read_text(encoding="utf-8")
    for line in re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.M)).splitlines():
        match = re.fullmatch(r"([\w.-]+)==(\S+)(?: --hash=sha256:[0-9a-f]{64})+", line)
        assert match, line
        found[match[1]] = match[2]
    return found


@pytest.mark.parametrize("extra", ["console", "kserve", "otel", "gpu"])
def test_the_hashes_of_an_extra_are_those_of_all_that_it_needs(extra: str) -> None:
    found = locked("console") | locked(extra)
    assert found.items() >= locked("console").items()
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert all(version == pinned.get(name, version) for name, version in found.items())
    extras = PROJECT["project"]["optional-dependencies"]
    needed = [*PROJECT["project"]["dependencies"], *extras["server"], *extras["console"]]
    for name in (re.split(r"[\[<>=]", each)[0] for each in [*needed, *extras[extra]]):
        assert name == "logitsieve" or name in found
    # Those of this environment's packages that are for other systems have no place there.
    for name in found.keys() - {"setuptools", "triton"}:
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            assert extra == "gpu"
            continue
        for each in map(Requirement, requires):
            if each.marker is None or each.marker.evaluate(ON_LINUX):
                assert canonicalize_name(each.name) in found, f"{name}: {each}"


def test_everything_is_installed_by_its_hash() -> None:
    """The wheel of the project itself is built from the sources that were copied."""
    for stage in (BUILDER, STAGES["gpu-builder"]):
        for run in stage.all("RUN"):
            for line in re.split("&&|;", run):
                if " install " in line:
                    assert "--no-deps" in line
                    assert "--require-hashes" in line or line.strip().endswith(" /dist/*.whl")
                assert "pip wheel" not in line or "--no-build-isolation" in line
    assert PROJECT["build-system"]["requires"] == ["hatchling"]
    assert "hatchling" in locked("build")
    assert [name for name, _ in BUILDER.steps][:5] == ["ARG", "WORKDIR", "COPY", "RUN", "COPY"]
    assert BUILDER.all("COPY")[0] == "deploy/image/*.txt deploy/image/"


@pytest.mark.parametrize("extras", [[], ["otel"], ["kserve", "otel"]])
def test_an_extra_comes_on_request(extras: list[str]) -> None:
    """Its lines run, with a pip that tells the file; an extra without hashes ends the build."""
    assert BUILDER.all("ARG") == ['EXTRAS=""']
    [loop] = re.findall(r"for extra.*done", BUILDER.all("RUN")[0])
    for given, code in ((extras, 0), ([*extras, "none"], 1)):
        script = f"python3() {{ for file; do :; done; echo $file; test -e $file; }}\n{loop}"
        done = subprocess.run(
            ["sh", "-c", script],
            env={"EXTRAS": ",".join(given), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
        )
        assert done.returncode == code
        read = [f"deploy/image/{name}.txt" for name in ("console", *given)]
        assert done.stdout.split() == read


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
    assert "--require-hashes --requirement deploy/image/gpu.txt" in install
    names = [name for name, _ in GPU.steps]
    assert GPU.user == RUNTIME.user
    assert "RUN" not in names[len(names) - 1 - names[::-1].index("USER") :]


def test_what_a_gpu_compiles_goes_to_the_one_folder_that_can_be_written() -> None:
    options = GPU.words("CMD")
    cache = options[options.index("--kernel-cache") + 1]
    assert GPU.environment["TRITON_CACHE_DIR"].startswith(f"{cache}/")
    assert GPU.environment["TMPDIR"] == cache
