"""Classifiers with many labels, trained with each loss for the same CPU seconds or steps.

Three tasks: noisy prototypes in clusters of confusable ones, with one label a row; Debian's
packages, each with the packages it depends on, from apt's lists; WordNet's nouns and verbs, by
their glosses, each with its hypernyms, from Debian's `wordnet-base`.

Shape letters: B rows, L labels of a row, C classes.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path
from time import process_time
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.papers.runs import IGNORED, Options, Rows, classes_scored, make
from logitsieve.kernels.compile import kernel

DIM, FACTORS, NOISE = 128, 64, 0.7
UNSEEN = 2000
RIGHT = (1, 5)  # k of P@k
FIELD = re.compile(r"^(Package|Source|Section|Description|Depends): (.*)$", re.M)
WORD = re.compile(r"[a-z]+")
BUCKETS, WORDS, LABELS, RAREST = 1 << 14, 24, 32, 3
HELD_OUT = 10
WORDNET = Path("/usr/share/wordnet")
SYNSET, HYPERNYM = re.compile("[0-9]{8} "), re.compile(r" @i? ([0-9]{8} [nv])")
Row: TypeAlias = tuple[str, list[str], list[str]]  # group, words, labels


class Prototypes:
    """Prototypes with noise; labels follow Zipf's law.

    `counts` [C] are the classes' frequencies; `layer` makes the part below the softmax, inputs to
    [B, DIM]; `draw` and `unseen` have inputs, and labels [B, L] padded with IGNORED.
    """

    name = "prototypes"

    def __init__(self, classes: int) -> None:
        random = np.random.default_rng(0)
        centers = random.standard_normal((max(classes // 20, 1), FACTORS))
        near = centers[np.arange(classes) % len(centers)]
        made = near + NOISE * random.standard_normal(near.shape)
        self._prototypes = torch.from_numpy(made).float()
        self._law = 1 / torch.arange(10.0, classes + 10)
        self.counts = self._law * 1e6
        torch.manual_seed(1)  # training draws from 0
        self.unseen = self.draw(UNSEEN)

    def layer(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FACTORS, DIM), nn.ReLU())

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        label = torch.multinomial(self._law, rows, replacement=True)
        return self._prototypes[label] + torch.randn(rows, FACTORS), label[:, None]


class Texts:
    """Rows of a group's name, its words and its labels; one group in HELD_OUT is held out."""

    def __init__(self, name: str, found: list[Row]) -> None:
        self.name = name
        found = [row for row in found if row[2]]
        count = Counter(label for *_, labels in found for label in labels)
        common = sorted(label for label, times in count.items() if times >= RAREST)
        number = {label: place for place, label in enumerate(common)}
        inputs = torch.zeros(len(found), WORDS, dtype=torch.int64)
        target = torch.full((len(found), LABELS), IGNORED)
        for row, (_, words, labels) in enumerate(found):
            ids = [1 + crc32(word.encode()) % (BUCKETS - 1) for word in words][:WORDS]
            inputs[row, : len(ids)] = torch.tensor(ids)
            own = [number[label] for label in labels if label in number][:LABELS]
            target[row, : len(own)] = torch.tensor(own)
        held = [crc32(group.encode()) % HELD_OUT == 0 for group, *_ in found]
        labelled, unseen = target[:, 0] != IGNORED, torch.tensor(held)
        self._inputs, self._target = (x[labelled & ~unseen] for x in (inputs, target))
        self.unseen = inputs[labelled & unseen], target[labelled & unseen]
        known = self._target[self._target != IGNORED]
        self.counts = torch.bincount(known, minlength=len(common)).float().clamp(min=1)

    def layer(self) -> nn.Module:
        words = nn.EmbeddingBag(BUCKETS, FACTORS, mode="mean", padding_idx=0)
        return nn.Sequential(words, nn.ReLU(), nn.Linear(FACTORS, DIM), nn.ReLU())

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self._inputs), (rows,))
        return self._inputs[chosen], self._target[chosen]


def debian() -> Texts:
    """Return Debian's packages, grouped by their source."""
    return Texts("Debian's dependencies", packages(available()))


def wordnet() -> Texts:
    """Return WordNet's synsets, each a group; SystemExit without Debian's `wordnet-base`."""
    try:
        files = [
            (WORDNET / name).read_text(encoding="utf-8") for name in ("data.noun", "data.verb")
        ]
    except OSError as error:
        raise SystemExit(f"{error}: apt-get install wordnet-base") from None
    return Texts("WordNet's hypernyms", [row for text in files for row in synsets(text)])


def available() -> str:
    """Return apt's lists as text; SystemExit without apt."""
    try:
        run = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"apt-cache dumpavail: {error}; this needs Debian and its lists") from None
    return run.stdout


def packages(lists: str) -> list[Row]:
    """Return the source, words and dependencies of each package; of alternatives the first."""
    found = []
    for paragraph in lists.split("\n\n"):
        fields: dict[str, str] = dict(FIELD.findall(paragraph))
        if "Package" not in fields:
            continue
        name = fields["Package"]
        text = " ".join((name, fields.get("Section", ""), fields.get("Description", "")))
        parts = fields.get("Depends", "").split(",")
        names = (re.split(r"[ (|:]", part.strip())[0] for part in parts)
        labels = list(dict.fromkeys(filter(None, names)))
        source = fields.get("Source", name).split()[0]
        found.append((source, WORD.findall(text.lower()), labels))
    return found


def synsets(text: str) -> list[Row]:
    """Return each synset of a WordNet file: its place, the words of its gloss, its hypernyms."""
    found = []
    for line in filter(SYNSET.match, text.splitlines()):
        fields, gloss = line.split(" | ", 1)
        found.append((fields[:8], WORD.findall(gloss.lower()), HYPERNYM.findall(fields)))
    return found


class RowAdam(torch.optim.SparseAdam):
    """SparseAdam in one pass over the touched rows: torch's makes a copy of them for each term."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        mean_rate, square_rate = group["betas"]
        for weight in group["params"]:
            state = self.state[weight]
            if not state:
                zeros = torch.zeros_like(weight)
                state.update(step=0, mean=zeros, square=zeros.clone())
            state["step"] += 1
            root = (1 - square_rate ** state["step"]) ** 0.5
            rate = group["lr"] * root / (1 - mean_rate ** state["step"])
            gradient = weight.grad.coalesce()
            parts = gradient.indices()[0], gradient.values(), state["mean"], state["square"], weight
            decays = mean_rate, 1 - mean_rate, square_rate, 1 - square_rate
            rates = np.array([rate, *decays, group["eps"]], np.float32)
            step_rows(*(part.numpy() for part in parts), rates)


@kernel(f"(int64[::1], {4 * 'float32[:,::1], '}float32[::1])")
def step_rows(rows: Any, gradient: Any, mean: Any, square: Any, weight: Any, rates: Any) -> None:
    """Adam's step (Kingma and Ba 2015) of `rows`, whose gradients [N, D] are given."""
    for place, row in enumerate(rows):
        g, m, v, w = gradient[place], mean[row], square[row], weight[row]
        for d in range(len(w)):
            m[d] = rates[1] * m[d] + rates[2] * g[d]
            v[d] = rates[3] * v[d] + rates[4] * g[d] * g[d]
            w[d] -= rates[0] * m[d] / (np.sqrt(v[d]) + rates[5])


def classifiers(
    task: Prototypes | Texts, methods: list[str], rows: int, options: Options, every: int = 50
) -> Rows:
    """Train with each loss; precision is the full softmax's on rows that were not trained on."""
    classes = len(task.counts)
    inputs, target = task.unseen
    for method in methods:
        torch.manual_seed(0)
        layer, criterion = task.layer(), make(method, DIM, classes, task.counts)
        body = torch.optim.Adam(layer.parameters(), 1e-3)
        sparse = RowAdam if criterion.classes.sparse else torch.optim.Adam
        head: torch.optim.Optimizer = sparse(list(criterion.parameters()), 1e-3)
        criterion.track(head, every=every)
        spent, count = 0.0, 0
        while count < options.steps if options.steps else spent < options.seconds:
            batch = task.draw(rows)
            start = process_time()
            body.zero_grad()
            head.zero_grad()
            criterion(layer(batch[0]), batch[1]).backward()
            body.step()
            head.step()
            spent, count = spent + process_time() - start, count + 1
        with torch.no_grad():
            scored = classes_scored(criterion, layer(batch[0]), batch[1])
            best = [
                criterion.logits(layer(x)).topk(max(RIGHT)).indices
                for x in torch.split(inputs, 256)
            ]
        hits = (torch.cat(best)[:, :, None] == target[:, None, :]).any(2).float()
        yield {
            "data": task.name,
            "method": method,
            "vocab_size": classes,
            "rows": rows,
            "every": every,
            "steps": count,
            "cpu_seconds": spent,
            **{f"p{k}": float(hits[:, :k].mean()) for k in RIGHT},
            "classes_of_a_row": scored[0],
            "classes_of_a_step": scored[1],
        }
