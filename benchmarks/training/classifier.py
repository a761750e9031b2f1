"""A hidden layer over sparse features and a softmax of many labels, trained against the CPU clock.

The network of papers/003 section 4: multi-hot features, one hidden layer, a softmax over labels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import backward

from benchmarks.training.entrants import Entrant
from benchmarks.training.labels import Task
from benchmarks.training.stages import STAGES, Stages
from logitsieve.training.losses.loss import SoftmaxLoss
from logitsieve.utils.options import Progress

AT_ONCE = 1 << 24  # logits held at once where labels are judged
TOP = 5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, how fast, how often looked at; `seconds` are CPU seconds of steps alone."""

    rows: int = 256
    dim: int = 128
    lr: float = 1e-3
    steps: int = 20_000
    seconds: float = 1_200.0
    looks: int = 12
    judged: int = 2_048
    every: int = 50  # steps between re-indexings; 0: never
    growth: float = 1.0
    rebuild_every: int | None = None
    seed: int = 1
    threads: int = 1


class Classifier(nn.Module):
    """The sum of the features' rows, through a rectifier."""

    def __init__(self, n_features: int, dim: int) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(n_features, dim, mode="sum", sparse=True)
        nn.init.normal_(self.rows.weight, std=0.1)

    def forward(self, features: Tensor) -> Tensor:
        """int64 [B, S] -> [B, D]; no rectifier over one feature a row, which is word2vec."""
        hidden: Tensor = self.rows(features)
        return hidden if features.shape[1] == 1 else hidden.relu()


def settings_of(entrant: Entrant, task: Task, plan: Plan) -> dict[str, Any]:
    """What decides a run, for its name."""
    return {
        "method": entrant.label,
        "task": task.name,
        "classes": len(task.counts),
        "features": task.n_features,
        **asdict(plan),
    }


def train(entrant: Entrant, task: Task, plan: Plan, progress: Progress) -> dict[str, Any]:
    """P@1, P@3, P@5 and the full loss by step and second, and what the stages of a step took."""
    torch.manual_seed(plan.seed)
    model = Classifier(task.n_features, plan.dim)
    head = entrant.make(plan.dim, task.counts, plan.seed)
    optimizers = make_optimizers(model, head, plan)
    clock, course = Stages(head), [look(model, head, task, plan, 0, 0.0)]
    totals = dict.fromkeys((*STAGES, "network"), 0.0)
    seconds, step = 0.0, 0
    while step < plan.steps and seconds < plan.seconds:
        seconds += one(model, head, task, plan, optimizers, clock, totals, step)
        step += 1
        if seconds >= plan.seconds * len(course) / plan.looks or _by_steps(step, plan):
            course.append(look(model, head, task, plan, step, seconds))
            done = max(seconds / plan.seconds, step / plan.steps)
            progress("this run, parts of 1000", min(1000, round(1000 * done)), 1000)
    if course[-1]["step"] != step:
        course.append(look(model, head, task, plan, step, seconds))
    us = {name: total / step * 1e6 for name, total in totals.items()}
    return {"course": course, "seconds": seconds, "steps": step, "us": us, **course[-1]}


def _by_steps(step: int, plan: Plan) -> bool:
    return step % max(1, plan.steps // plan.looks) == 0


def make_optimizers(
    model: Classifier, head: SoftmaxLoss, plan: Plan
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Adam, sparse where gradients are; the head's is followed."""
    kind = torch.optim.SparseAdam if head.classes.sparse else torch.optim.Adam
    own = kind(list(head.parameters()), lr=plan.lr)
    every = plan.every or plan.steps + 1
    if getattr(head, "structure", None) is not None:
        head.follow(own, every=every, growth=plan.growth, rebuild_every=plan.rebuild_every)
    return torch.optim.SparseAdam(list(model.parameters()), lr=plan.lr), own


def one(
    model: Classifier,
    head: SoftmaxLoss,
    task: Task,
    plan: Plan,
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    clock: Stages,
    totals: dict[str, float],
    step: int,
) -> float:
    """One step; its CPU seconds without those of making the batch."""
    features, labels = task.train(step, plan.rows)
    begun = process_time()
    hidden = model(features)
    leaf = hidden.detach().requires_grad_()
    taken = clock.step(optimizers[1], leaf, labels)
    backward(hidden, leaf.grad)
    optimizers[0].step()
    optimizers[0].zero_grad()
    seconds = process_time() - begun
    for stage, ns in taken.items():
        totals[stage] += ns / 1e9
    totals["network"] += seconds - sum(taken.values()) / 1e9
    return seconds


@torch.no_grad()
def look(
    model: Classifier, head: SoftmaxLoss, task: Task, plan: Plan, step: int, seconds: float
) -> dict[str, float]:
    """The full softmax on rows that are not learned from, by parts."""
    part = max(1, min(plan.judged, AT_ONCE // len(task.counts)))
    right, loss, done, number = torch.zeros(TOP), 0.0, 0, 0
    while done < plan.judged:
        features, labels = task.judge(number, part)
        hidden = model(features)
        best = head.logits(hidden).topk(TOP).indices
        right += (best[:, :, None] == labels[:, None, :]).any(2).float().sum(0)
        loss += float(head.full_loss(hidden, labels)) * part
        done, number = done + part, number + 1
    sums = right.cumsum(0) / done
    found = {f"p{k}": float(sums[k - 1]) / k for k in (1, 3, 5)}
    return {"step": step, "seconds": seconds, "loss": loss / done, **found}
