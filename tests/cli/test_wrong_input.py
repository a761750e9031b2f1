"""What is wrong is named, with exit code 2, and no result is written."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import LONGEST
from tests.cli.conftest import SMALL, Run
from tests.cli.test_capture import SOURCE
from tests.llamacpp.small_model import Make

SMALL_RUN = " ".join(map(str, SMALL))
# By commands, of which words in capitals are files: what follows and what is said.
WRONG: dict[str, dict[str, str]] = {
    "admin": {
        "load demo": "model: got demo, allowed: name@version",
        "unload demo@two": "model: got demo@two",
        "unload demo@2 --drain-s -1": "drain_s: got -1",
        "load demo@2 --drain-s 3601": "drain_s: got 3601.0, allowed: a number, 0 to 3600",
        "alias demo@2 --timeout-s 3601": "timeout_s: got 3601.0, allowed: a positive",
        "load demo@2 --api-key-file nowhere": "api_key_file: got nowhere",
        "remove demo@2": "remove",
    },
    "build BUILD": {
        "--weight DATA/H.npy": "bias: got",
        "--weight DATA/int8.npy": "weight: got dtype int8, allowed: [V, D] of float16, float32,",
        "--weight DATA/cube.npy": "weight: got shape [2, 2, 2], allowed: [V, D]",
        "--weight DATA": "weight: got DATA, allowed: MODEL.gguf, FILE.npy, FILE.npz:NAME or",
        "--weight DATA/none.npy": "weight: got DATA/none.npy: No such file or directory, allowed:",
        "--weight DATA/lm.npz:A": "weight: got DATA/lm.npz: no array named 'A', allowed:",
        "--weight DATA/turned.npy": "bias: got shape [300], allowed: [V] = [24] (is the weight",
        "--bias DATA/narrow.npy": "bias: got shape [40, 3], allowed: [V] = [300]",
        "--bias DATA/int8.npy": "bias: got shape [4, 3]",
        f"--contexts DATA/{'long' * 50}.npy": "contexts: got",
        "--contexts DATA": "no numbered .npy file, allowed: a folder of numbered .npy",
        "--target-precision p1=2": "target_precision",
        "--target-precision x": "target_precision: got 'x'",
        "--dtype int4": "dtype",
        "--threads 0": "--threads",
        "--contexts DATA/lm.npz": "contexts: got",
        "--heldout DATA/narrow.npy": "heldout: got D = 3, allowed: D = 24",
        "--vocab-file DATA/H.npy": "vocab_file: got",
        "--out DATA/models/LM/1": "out: got",
        "--out DATA/int8.npy/1": "DATA/int8.npy is no folder",
        "--out /proc/lm/1": "/proc takes no folder",
        "--heads screen,telepathy": "heads: got",
        "--target-precision p1": "target_precision: got 'p1', allowed: p1=0.998 or p1=",
        "--clusters 0": "--clusters",
        "--learning-rate nan": "--learning-rate",
    },
    "build --weight DATA/square.npy --out DATA/models/lm/1": {
        "--target-precision p1=0.9": "contexts: got nothing, allowed: contexts to reach",
        "--heads screen": "contexts: got nothing, allowed: contexts to fit",
        "--weight DATA/turned.npy --contexts DATA/H.npy": "D = 300, the weight's (is the weight",
    },
    "capture --out DATA/out": {
        "": "module: got nothing, allowed: one of --module, --huggingface, --model",
        "--module DATA/model.py:scaled": "model: got logits scaled by 0.5",
        "--module DATA/model.py:nothing": "nothing() returned NoneType",
        "--module DATA/model.py:absent": "a function of",
        "--module DATA/model.py:load --output-layer head": "output_layer: got head",
        "--module DATA/model.py:load --max-rows 0": "--max-rows",
        **{f"--module {m}": "module: got" for m in ("nowhere.py:load", "load", ":", "a.txt:load")},
        "--module a.py:f --huggingface b": "module: got module and huggingface",
        "--huggingface absent": "text: got nothing",
        "--huggingface absent --text none.txt": "huggingface: got absent",
        "--huggingface a --text b --chat": "chat: got --huggingface, allowed: --model",
        "-m absent": "model: got absent",
        "--model absent --chat": "text: got nothing, allowed: a text of messages",
    },
    "evaluate INDEX --contexts DATA/H.npy": {
        "-k 0": "-k",
        "-k 301": "k: got 301, allowed: a whole number, 1 to 300",
        "--head svd": "head: got 'svd', allowed: full, screen",
        "--knob speed=1": "speed",
        "--knob probes=0": "probes",
        "--batch 0": "--batch",
        "--contexts none.npy": "error: contexts: ",
        "--contexts DATA/narrow.npy": "error: contexts: got D = 3",
    },
    "generate --model GGUF --prompt go": {
        "--head screen": "head: got 'screen', allowed: sketch, dense",
        "--file -": "prompt: got both --prompt and --file",
        "--logprobs": "logprobs: got text output, allowed: --logprobs with --json",
        "--system go": "system: got 'go', allowed: --system with --chat",
        "--chat": "without a chat template",
        "--stop ''": "stop: got ('',)",
        "--index DATA/none/1": "index: got DATA/none/1, which does not exist, allowed: a folder",
        f"--ctx-size 3 -p '{'go ' * 300}'": "prompts: got",
        "--head dense --penalized -1": "penalized: got -1",
        "--head dense --top-k 1.5": "--top-k",
        "--head dense --top-p 7": "top_p: got 7",
        "--watermark-key DATA/none": "watermark_key: got DATA/none (No such file or directory)",
        "--watermark-key TEXT": "watermark_key: got ",
    },
    **{
        command: {
            "DATA/none/1": "index: got DATA/none/1, which does not exist, allowed: a folder <name>",
            "DATA/H.npy": "index: got DATA/H.npy, which is no folder, allowed: a folder <name>",
            "INDEX/..": "a folder <name>/<version>, version 1, 2, ...; it holds 1",
            "DATA": "index: got DATA, which is no version, allowed: a folder <name>/<version>, v",
        }
        for command in ("inspect", "verify", "inspect --json", "verify --all-rows")
    },
    "serve --model-repository DATA/none": {
        "": "model_repository: got DATA/none",
        "--model-repository DATA --port 70000": "--port",
        "--model-repository DATA --threads 0": "--threads",
        "--model-repository DATA --config DATA/none.toml": "config: got DATA/none.toml",
        "--model-repository DATA --tls-cert DATA/none.pem": "tls_",
        "--model-repository DATA --device tpu": "device: got 'tpu'",
    },
    "serve-gguf GGUF": {
        "--head screen": "head: got 'screen', allowed: sketch, dense",
        "--port 70000": "--port",
        "--parallel 0": "--parallel",
        "--watermark-key-file DATA/none": "watermark_key_file: got DATA/none",
        "--tls-cert cert.pem": "error: tls_key: got nothing",
    },
    "serve-gguf": {
        "": "model: got nothing, allowed: one file",
        "DATA/none.gguf": "model: got DATA/none.gguf",
        "GGUF -m DATA/none.gguf": "model: got both GGUF and --model DATA/none.gguf",
    },
    "detect -m GGUF --text TEXT": {
        "--key-file DATA/none": "key_file: got DATA/none",
        "--key-file DATA/int8.npy": " bytes, allowed: 16 to 64 bytes",
    },
    "shard INDEX --shards 2 --out DATA/s/1": {
        "--shards 0": "--shards",
        "--shards 301": "shards: got 301",
        "--out INDEX": "out: got",
    },
    "prune DATA/none": {"": "models: got DATA/none", "--keep 0": "--keep"},
    "compare -m GGUF --reference GGUF": {
        "--text DATA/none.txt": "text: got DATA/none.txt",
        "--text TEXT --csv DATA/none/a.csv": "csv: got DATA/none/a.csv",
    },
    "query --address localhost:1": {
        "": "hidden_states: got nothing, allowed: an existing .npy file; `query models` lists the",
        "--hidden-states DATA/none.npy": "hidden_states: got DATA/none.npy",
        "--timeout-s 0": "timeout_s: got 0",
        "--hidden-states DATA/H.npy --vocab-file DATA/none.txt": "vocab_file: got DATA/none.txt",
        "--api-key-file DATA/none": "api_key_file: got DATA/none",
        "--tls-ca DATA/none": "tls",
    },
    "inspect INDEX": {
        "--min-precision nan": "min_precision",
        "--min-precision 0.5 --exact": "min_precision: got 0.5, allowed: none beside exact",
        "--exact -k 0": "k: got 0",
        "-k 301": "k: got 301, allowed: a whole number, 1 to 300",
    },
    "ray": {
        "up --replicas 0": "--replicas",
        "up --cpus -1": "--cpus",
        "up --patience-s 0": "--patience-s",
        "up --missing guess": "--missing",
        "up --port 70000": "--port",
    },
    f"train --out DATA/run {SMALL_RUN}": {
        "": "text: got nothing, allowed: a text file, or --resume",
        "--text nowhere": "text: got nowhere",
        "--text TEXT --valid nowhere": "valid: got nowhere",
        "--text TEXT --loss magic": "loss: got magic, allowed: full, ",
        "--text TEXT --loss-option k=3": "loss_option: got 'k=3', allowed: NAME=VALUE",
        "--text TEXT --lr 5000": "--lr",
        "--text TEXT --dim 0": "--dim",
        "--text TEXT --batch-size 900": "text: got 778 words to train on",
        "--text TEXT --build models/m/1": "capture: got nothing",
        "--text TEXT --capture 9 --build models/m/x": "out: got",
        "--text TEXT --capture 9 --build-config b.toml": "build_config: got",
        "--text TEXT --device cuda:7": "device: got cuda:7",
        "--resume": "resume: got",
    },
    "tune INDEX --contexts DATA/H.npy --out INDEX/../2": {
        "--out INDEX": "out: got",
        "--out INDEX/../one": "out: got",
        "--rows 0": "--rows",
        "--minutes -1": "--minutes",
        "--contexts none.npy": "contexts: got",
    },
}


def says(stderr: str, said: str) -> bool:
    """Whether it does, also if a long path lost its middle."""
    text = stderr.replace("\n", " ")
    return said in text or ("..." in text and said[:30] in text and said[-20:] in text)


@pytest.fixture
def places(
    tmp_path: Path, index: Path, text: Path, inputs: dict[str, Any], make_gguf: Make
) -> dict[str, str]:
    (tmp_path / "model.py").write_text(SOURCE)
    shapes = {"narrow": (40, 3), "cube": (2, 2, 2), "turned": (24, 300), "square": (9, 9)}
    for name, shape in shapes.items():
        np.save(tmp_path / f"{name}.npy", np.ones(shape, np.float32))
    np.save(tmp_path / "int8.npy", np.ones((4, 3), np.int8))
    build = " ".join(f"{name} {value}" for name, value in inputs.items())
    files = {"INDEX": index, "TEXT": text, "GGUF": make_gguf(), "DATA": tmp_path}
    return {"BUILD": build, **{name: str(path) for name, path in files.items()}}


@pytest.mark.usefixtures("llama_wheel", "build")
@pytest.mark.parametrize(
    ("line", "said"),
    [(f"{name} {more}", said) for name, each in WRONG.items() for more, said in each.items()],
)
def test_it_is_named(
    run: Run, places: dict[str, str], tmp_path: Path, line: str, said: str
) -> None:
    line, said = (
        re.sub("|".join(places), lambda one: places[one[0]], text) for text in (line, said)
    )
    before = set(tmp_path.rglob("*"))
    result = run(*shlex.split(line), code=2)
    assert result.stdout == ""
    assert says(result.stderr, said), result.stderr
    assert len(result.stderr.splitlines()[-1]) <= len("error: ") + LONGEST
    new = {path.relative_to(tmp_path) for path in {*tmp_path.rglob("*")} - before}
    assert {path.parts[0] for path in new} <= {"__pycache__", "cache", "run"}
    assert Path("run", "checkpoint.pt") not in new
