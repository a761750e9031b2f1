"""Softmaxes to race on, by name: weights, contexts to fit, to tune and to judge, and their origin.

Contexts to judge had no part in fitting or tuning. What has to be computed is computed once into
the cache folder. Shape letters: N contexts, D hidden size, V vocabulary.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.published.contexts import JUDGED, contexts_folder
from benchmarks.race.prepare import CACHE, SHARED, prepared
from demo.contexts import capture_contexts, three_texts, windows
from demo.excerpt import EXCERPT, read_paragraphs
from demo.lstm import WEIGHTS_FILE, Lstm
from demo.published import MODELS
from logitsieve.api.results import Float32
from logitsieve.cli.output import bars
from logitsieve.heads import Softmax
from logitsieve.index import Index
from logitsieve.index_builder import build, load_array
from logitsieve.llamacpp import GgufModel, OutputMatrix
from logitsieve.training.vocabulary import Vocabulary

DEMO_MODEL = EXCERPT.parents[1] / "model"
DEMO_CONTEXTS = 100_000
SLICES = (2000, 4000, 6000, 8000)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A frozen softmax and contexts of it."""

    name: str
    index: str  # indexes are shared by datasets of the same softmax and fit
    weight: Float32  # [V, D]
    bias: Float32  # [V]
    fit: Float32  # [N, D]
    heldout: Float32  # to choose settings with
    test: Float32  # to judge
    provenance: str
    kinds: Sequence[str] = ()  # of text, of each row of `test`; empty where there is one
    gguf: Path | None = None  # the file whose output matrix W is
    stored: OutputMatrix | None = None  # that matrix, in its blocks

    @property
    def softmax(self) -> Softmax:
        return Softmax(self.weight, self.bias)

    def build(self, out: Path, **options: Any) -> Index:
        """Build an index of it; `options` are those of the builder."""
        weight, bias = (self.weight, self.bias) if self.gguf is None else (self.gguf, None)
        return build(weight, bias, self.fit, out, heldout=self.heldout, **options)

    @contextmanager
    def built(self, **options: Any) -> Iterator[Index]:
        """An index of it, in a folder that is removed at the end."""
        with TemporaryDirectory() as scratch:
            yield self.build(Path(scratch) / self.name / "1", **options)

    @property
    def weight_bytes(self) -> int:
        """Bytes of W as it is stored, and of b."""
        stored = self.weight if self.stored is None else self.stored.blocks
        return int(stored.nbytes + self.bias.nbytes)


def load(name: str, shared: Path = SHARED, cache: Path = CACHE) -> Dataset:
    """The dataset; a ValueError lists the names if there is none of that name."""
    if name not in DATASETS:
        raise ValueError(f"DATA is {name!r}, allowed: {', '.join(DATASETS)}")
    return DATASETS[name](name, shared, cache)


def halves(contexts: Float32) -> tuple[Float32, Float32]:
    """To tune, to judge: neighbours leak, so in two contiguous parts."""
    middle = len(contexts) // 2
    return contexts[:middle], contexts[middle:]


def _float(path: Path, **names: str) -> dict[str, Any]:
    """Arrays of a file by the field that each is for."""
    return {
        field: np.ascontiguousarray(load_array(f"{path}:{name}"), np.float32)
        for field, name in names.items()
    }


def _demo(name: str, shared: Path, cache: Path) -> Dataset:
    """The bundled model, its text read again; what is kept of another model is not taken."""
    model, vocabulary = Lstm.load(DEMO_MODEL), Vocabulary.load(DEMO_MODEL)
    mark = sha256((DEMO_MODEL / WEIGHTS_FILE).read_bytes()).hexdigest()[:8]
    contexts = []
    with bars() as progress:
        for part, paragraphs in three_texts(read_paragraphs(EXCERPT))._asdict().items():
            (folder := cache / f"demo-{mark}").mkdir(parents=True, exist_ok=True)
            if not (file := folder / f"{part}.npy").exists():
                read = windows(vocabulary, paragraphs, DEMO_CONTEXTS)
                capture_contexts(model, read, file, progress)
            contexts.append(np.load(file).astype(np.float32))
    fit, heldout, test = contexts
    return Dataset(
        name=name,
        index=f"demo-{mark}",
        weight=model.weight,
        bias=model.bias,
        fit=fit,
        heldout=heldout,
        test=test,
        provenance="bundled LSTM language model and excerpt; judged on text it never saw",
    )


def _lm_docs(name: str, shared: Path, cache: Path, words: int = 10_000) -> Dataset:
    path = shared / "data" / "lm-docs-10k-200.npz"
    if not path.exists():
        raise SystemExit(f"{path} is absent: {name} is made of it; `demo` needs nothing")
    found = _float(path, weight="W", bias="b", fit="H_train", test="H_test")
    heldout, test = halves(found["test"])
    return Dataset(
        name=name,
        index=name,
        weight=found["weight"][:words].copy(),
        bias=found["bias"][:words].copy(),
        fit=found["fit"],
        heldout=heldout,
        test=test,
        provenance=f"2-layer LSTM on technical prose, its {words:,} most frequent words; "
        "fitted on H_train, tuned on the first half of H_test, judged on the second",
    )


def _nmt(name: str, shared: Path, cache: Path, domain: str) -> Dataset:
    path = prepared("nmt", shared, cache)
    unseen = {
        each: halves(contexts)
        for each, contexts in _float(path, captions="H_captions", software="H_software").items()
    }
    return Dataset(
        name=name,
        index="nmt",
        **_float(path, weight="W", bias="b", fit="H_fit"),
        heldout=np.concatenate([tune for tune, _ in unseen.values()]),
        test=unseen[domain][1],
        provenance="German-English Transformer, teacher-forced; fitted on both domains of "
        f"train.tsv, tuned on the first half of both tests, judged on the second half of {domain}",
    )


def _trained(name: str, shared: Path, cache: Path, origin: str) -> Dataset:
    """A softmax trained here; `origin` says what it is."""
    path = prepared(name, shared, cache)
    contexts = _float(path, fit="H_fit", heldout="H_heldout", test="H_test")
    with np.load(path) as arrays:
        reached = json.loads(str(arrays["perplexity"]))["test"]
    return Dataset(
        name=name,
        index=name,
        **_float(path, weight="W", bias="b"),
        **contexts,
        provenance=f"{origin}; perplexity {reached:.1f} on text that it never saw",
    )


def _published(name: str, shared: Path, cache: Path) -> Dataset:
    with bars("contexts") as progress:
        folder = contexts_folder(name, progress=progress)
    test = [np.load(folder / f"{kind}.npy") for kind in JUDGED]
    model = GgufModel(folder / f"{name}.gguf")
    return Dataset(
        name=name,
        index=f"{name}-primer",
        weight=model.matrix.dense(np.float32),
        bias=np.zeros(model.vocab_size, np.float32),
        fit=np.load(folder / "fit.npy"),
        heldout=np.load(folder / "heldout.npy"),
        test=np.concatenate(test),
        kinds=np.repeat(JUDGED, [len(rows) for rows in test]).tolist(),
        gguf=model.path,
        stored=model.matrix,
        provenance=f"{name} as published, W in {model.matrix.kind}; fitted on the primer and "
        f"English prose, tuned on English prose, judged on other text: {', '.join(JUDGED)}",
    )


DATASETS: dict[str, Callable[[str, Path, Path], Dataset]] = {
    "demo": _demo,
    "lm-docs": _lm_docs,
    **{f"lm-docs-{words}": partial(_lm_docs, words=words) for words in SLICES},
    "nmt-captions": partial(_nmt, domain="captions"),
    "nmt-software": partial(_nmt, domain="software"),
    "transformer-30k": partial(
        _trained,
        origin="Transformer language model of 3 layers, 2.5 million words of technical prose",
    ),
    "lstm-1500": partial(
        _trained, origin="LSTM language model of 1 layer, 4 million words of technical prose"
    ),
    **dict.fromkeys(MODELS, _published),
}
