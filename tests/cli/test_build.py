import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.cli.build import slow_proof
from logitsieve.decoding.auto import Auto
from logitsieve.index import open_index
from tests.cli.conftest import Run
from tests.evaluation.test_operating_points import make_point
from tests.llamacpp.small_model import Make
from tests.synthetic import make_hidden

QUICK = ("--clusters", 4, "--rounds", 1, "--steps", 3, "--kmeans-iterations", 2)


def flat(options: dict[str, Any]) -> list[Any]:
    return [part for pair in options.items() for part in pair]


@pytest.mark.usefixtures("always_a_sketch")
def test_build_then_inspect(run: Run, inputs: dict[str, Any]) -> None:
    result = run("build", *flat(inputs), *QUICK, "--json")
    facts = json.loads(result.stdout)
    index = open_index(inputs["--out"])
    assert (facts["digest"], facts["dtype"]) == (index.digest, "F32")
    assert index.manifest.config["clusters"] == 4
    assert index.vocabulary is not None
    assert index.vocabulary[299] == "word299"
    assert {point["head"]["name"] for point in facts["calibration"]["points"]} == {
        "full",
        "sketch",
        "screen",
    }
    shown = run("inspect", inputs["--out"]).stdout
    assert "held-out contexts" in shown


@pytest.mark.parametrize(("us", "warned"), [(39, True), (40, True), (41, False)])
def test_a_proof_that_takes_no_less_time_than_exact_is_told(us: int, warned: bool) -> None:
    """At one row a call, whatever share of the rows it computes."""
    proofs = [make_point("full", (us, 9, 9), max_error=0)]
    proofs.append(make_point("sketch", (40, 1, 1), max_error=0))
    unproven = make_point("sketch", (99, 99, 99), max_error=1e-15)
    said = slow_proof(Auto([*proofs, unproven], {}, 300))
    times = f"40 us at one row a call, full {us} us"
    assert said == f"Warning: a proof by sketch takes {times}." * warned
    assert slow_proof(Auto([unproven], {}, 300)) == ""


def test_build_prints_what_it_measured_and_a_half_type(run: Run, inputs: dict[str, Any]) -> None:
    options = (*QUICK, "--heads", "full", "--dtype", "bfloat16")
    shown = run("build", *flat(inputs), *options).stdout
    for text in ("B=64", "P@5", "softmax.safetensors", "requests without a head: full (AUTO)"):
        assert text in shown
    for command in ("inspect", "verify"):
        assert json.loads(run(command, inputs["--out"], "--json").stdout)["dtype"] == "BF16"
        assert "BF16" in run(command, inputs["--out"]).stdout


def test_a_target_beyond_proof(run: Run, inputs: dict[str, Any], tmp_path: Path) -> None:
    options = (*QUICK, "--clusters-tried", 2, "--target-precision", "p1=1,p5=1")
    said = "target_precision: got p1=1 with 40 held-out contexts"
    result = run("build", *flat(inputs), *options, code=2, says=said)
    assert "or best_effort (--best-effort)" in result.stderr
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(("target", "warned"), [("p1=0.3", False), ("p1=0.85", True)])
def test_many_rows_left_to_the_fallback_are_warned_of(
    run: Run, inputs: dict[str, Any], tmp_path: Path, target: str, warned: bool
) -> None:
    """Contexts without any structure: what lists of a few hold is right by chance."""
    options = (*QUICK, "--clusters-tried", 2, "--waste-weight", 1, "--target-precision", target)
    np.save(tmp_path / "fit.npy", make_hidden(400)[:360])
    np.save(tmp_path / "heldout.npy", make_hidden(400)[360:])
    files = {"--contexts": tmp_path / "fit.npy", "--heldout": tmp_path / "heldout.npy"}
    result = run("build", *flat(inputs | files), *options)
    escalated = open_index(inputs["--out"]).manifest.heads["screen"].config["escalated"]
    assert (escalated > 0.5) == warned
    assert ("to the fallback of the screen" in result.stdout) == warned


def test_without_contexts(run: Run, inputs: dict[str, Any]) -> None:
    del inputs["--contexts"]
    run("build", *flat(inputs), says="without contexts bounds are for any direction")
    index = open_index(inputs["--out"])
    assert (index.heads, index.calibration) == (("full", "sketch"), None)
    said = "error: contexts: got nothing, allowed: contexts to fit"
    run("build", *flat(inputs | {"--heads": "screen"}), code=2, says=said)


def test_gguf_and_no_contexts(run: Run, make_gguf: Make, llama_wheel: None, tmp_path: Path) -> None:
    out = tmp_path / "lm" / "1"
    made = ("build", "--weight", make_gguf(), "--out", out)
    options = ("--threads", 1, "--heldout-rows", 20)
    run(*made, *options, says="the model reads the primer first")
    index = open_index(out)
    assert index.heads == ("full", "sketch")
    assert index.calibration is not None
    assert index.calibration["heldout_rows"] == 20
    assert "primer" not in run(*made, code=2, says="error: out: got").stderr
