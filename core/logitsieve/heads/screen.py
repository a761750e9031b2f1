"""The learned screen (L2S): the nearest cluster's candidate list instead of the vocabulary.

Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen for Fast Softmax Inference on Large Vocabulary
Neural Networks: t = argmax_c v_c . h, then exact logits of the words in list t (section 3).
"""

from logitsieve.api.results import Int64
from logitsieve.heads._base.head import Knob, by_knob, require_part
from logitsieve.heads._base.kernel_head import ClusteredHead
from logitsieve.heads._base.spec import PartSpec, TensorSpec, no_empty_lists, no_id_twice
from logitsieve.heads.sketch import SKETCH
from logitsieve.kernels.sketch.sketch import sketch_descriptor


class ScreenHead(ClusteredHead):
    """Looks at the candidate lists of the `probes` best clusters of each row.

    A row with a cosine to its best centroid below `escalate` (times the cluster's `reaches`, if the
    part has them) is far from every fitted context: the fallback answers. Not in the paper.
    """

    name = "screen"
    borrows = ("sketch",)
    part = PartSpec(
        "screen",
        {
            "centroids": TensorSpec("float32", ("C", "D")),
            "reaches": TensorSpec("float32", ("C",), "factors", optional=True),
            "offsets": TensorSpec("int32", ("C+1",), "offsets", "S"),
            "ids": TensorSpec("int32", ("S",), "ids", "V"),
        },
        structure=no_empty_lists,
        values=no_id_twice,
    )
    probed = "probes"
    knob_table = by_knob(
        probes=Knob(
            help="best clusters to unite: precision for time", default=1, high=64, tried=(1, 2, 4)
        ),
        escalate=Knob(
            help="rows of a lower cosine to their centroid go to the fallback: time",
            default=-1.0,
            low=-1.0,
            high=1.0,
            whole=False,
            tried=(-1.0, 0.4, 0.6, 0.8),
        ),
        prescreen=Knob(
            help="1: bound candidates by the sketch before computing any; pays where D is large",
            default=0,
            low=0,
            high=1,
            tried=(0, 1),
        ),
    )
    limits = by_knob(
        probes=lambda arrays, _: len(arrays["centroids"]),
        prescreen=lambda arrays, _: int("sketch.fine" in arrays and "sketch.middle" not in arrays),
    )

    def _sketch(self) -> Int64 | None:
        if not self.knobs["prescreen"]:
            return None
        held = {name: f"sketch.{name}" for name in SKETCH.tensors}
        arrays = {name: self._arrays[key] for name, key in held.items() if key in self._arrays}
        require_part(SKETCH, arrays, self._softmax)
        return sketch_descriptor(self._softmax.descriptor, arrays)
