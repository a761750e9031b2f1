"""SimHash tables over the rows of W: exact logits of the rows that share a bucket with h.

Levy, Chen, Ermon 2018, LSH Softmax: Sub-Linear Learning and Inference of the Softmax Layer in Deep
Architectures; several buckets a table as in Lv et al. 2007, Multi-Probe LSH.

Time O(J D + I + S D) a row with I ids in the probed buckets; memory J D floats and L (V + 2^N)
integers. Shape letters: L tables, N bits a table, J = L N planes.
"""

from threading import local

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.heads._base.head import Knob, by_knob
from logitsieve.heads._base.kernel_head import SelectingHead
from logitsieve.heads._base.spec import Arrays, PartSpec, TensorSpec
from logitsieve.kernels.retrieval.hash_tables import LARGEST_BITS, lsh_select, probe_order

LARGEST_TABLES = 4096  # counts of tables have 16 bits


def _whole_tables(arrays: Arrays) -> None:
    tables, bits, _ = arrays["planes"].shape
    if tables > LARGEST_TABLES or bits > LARGEST_BITS:
        allowed = f"{LARGEST_TABLES} tables of {LARGEST_BITS} bits"
        raise ValueError(f"planes of {tables} tables of {bits} bits, at most: {allowed}")
    sizes = {"shifts": tables * bits, "offsets": tables * (1 << bits) + 1}
    for name, size in sizes.items():
        if arrays[name].size != size:
            raise ValueError(f"{name} holds {arrays[name].size} numbers, needed: {size}")
    offsets, size = arrays["offsets"], arrays["ids"].size
    ends = offsets[:: 1 << bits].astype(np.int64)
    if (ends * tables != np.arange(tables + 1, dtype=np.int64) * size).any():
        raise ValueError("offsets do not give every table as many ids")


def _each_id_once(arrays: Arrays) -> None:
    ids = arrays["ids"].reshape(len(arrays["planes"]), -1)
    for table, mine in enumerate(ids):
        if (np.sort(mine) != np.arange(mine.size)).any():
            raise ValueError(f"ids: table {table} does not hold every id once")


class LshHead(SelectingHead):
    name = "lsh"
    part = PartSpec(
        "lsh",
        {
            "planes": TensorSpec("float32", ("L", "N", "D")),
            "shifts": TensorSpec("float32", ("J",)),  # added to each product, for the bias
            "offsets": TensorSpec("int32", ("S+1",), "offsets", "T"),
            "ids": TensorSpec("int32", ("T",), "ids", "V"),
        },
        structure=_whole_tables,
        values=_each_id_once,
    )
    knob_table = by_knob(
        tables=Knob(
            help="tables looked up, at most all there are: precision for time",
            default=LARGEST_TABLES,
            high=LARGEST_TABLES,
            tried=(16, 32, 64, 128, 256),
        ),
        probes=Knob(
            help="nearest buckets of each table, at most all: precision for time",
            default=1,
            high=1 << LARGEST_BITS,
            tried=(1, 2, 4, 8),
        ),
        candidates=Knob(
            help="ids taken from the most tables, never fewer than k; 0 takes all",
            default=0,
            low=0,
            tried=(0, 300, 1000, 3000),
        ),
    )
    limits = by_knob(
        tables=lambda arrays, _: arrays["planes"].shape[0],
        probes=lambda arrays, _: 1 << arrays["planes"].shape[1],
    )

    def _prepare(self) -> None:
        super()._prepare()
        self._scratch = local()  # of each calling thread
        self._select = lsh_select.entry()

    def _apply_knobs(self) -> None:
        self._order = probe_order(self._arrays["planes"].shape[1], int(self.knobs["probes"]))
        self._tables = int(self.knobs["tables"])
        self._most = int(self.knobs["candidates"]) or self._softmax.vocab_size

    def select(self, hidden_states: Float32, k: int) -> tuple[Int64, Int32]:
        scratch = self._scratch.__dict__
        if not scratch:
            vocab_size = self._softmax.vocab_size
            scratch["counts"] = np.zeros(vocab_size, np.uint16)
            scratch["collected"] = np.empty(vocab_size + 1, np.int32)
        tables = (self._arrays[name] for name in ("planes", "shifts", "offsets", "ids"))
        probed, most = (self._order, self._tables), max(self._most, k)
        offsets, ids = self._select(hidden_states, *tables, *probed, most, *scratch.values())
        return offsets, ids
