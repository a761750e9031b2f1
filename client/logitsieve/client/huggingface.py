"""Let a Decoder replace the output layer of a Hugging Face model.

`model.generate` then computes few of the V logits. The layer's parameters stay in the model.
"""

from __future__ import annotations

from typing import Any, Self, Unpack

from logitsieve.api.checks import whole
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec
from logitsieve.utils.environment import require

require("huggingface", "torch", "transformers")

import torch  # noqa: E402  after `require` with its pip line
from torch import LongTensor, Tensor, nn  # noqa: E402
from transformers import (  # noqa: E402
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.generation.configuration_utils import GenerationMode  # noqa: E402
from transformers.generation.logits_process import LogitNormalization, WhisperNoSpeechDetection  # noqa: E402

from logitsieve.client.huggingface_head import DecoderHead, refuse_more_than_linear  # noqa: E402
from logitsieve.client.huggingface_processors import (  # noqa: E402
    GUIDE,
    DecoderDraws,
    GrammarMask,
    KnownLogits,
    by_steps,
    count_of_best,
    draw_options,
    editing_processors,
    guidance,
)
from logitsieve.client.huggingface_whisper import NoSpeech, first_timestamp  # noqa: E402

__all__ = ["Attachment", "GrammarMask", "attach"]

K = 10
SERVED = (
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
)


def attach(
    model: PreTrainedModel,
    decoder: Decoder,
    /,
    *,
    k: int = K,
    editors: tuple[type[LogitsProcessor], ...] = (),
    **spec: Unpack[ModelSpec],
) -> Attachment:
    """Let `decoder` replace the output layer of `model`, until `detach` or the end of `with`.

    Logits are exact at the `k` best ids of each row, or at more if `generate` needs them. The other
    ids share one value, such that log_softmax gives logit - log Z. If `generate` samples without a
    `top_k`, the decoder draws, seeded by torch's global generator.

    `spec` are the decoder's keywords. The default `normalizer` is `score`'s; for beams it is
    `approximate`, or `full` with a `head`, `exact`, `max_error` or `width`. `editors` are classes
    of your own logits processors that read only `input_ids`; they are called twice a step.

    Raises InvalidRequest if the output layer is not a plain nn.Linear (it has hooks, an adapter or
    its own forward) or the index is of another matrix. `generate` raises it if logits are changed
    after the layer, or for a setting that would change the distribution of draws.
    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        got = f"the output layer {type(layer).__module__}.{type(layer).__qualname__}"
        raise InvalidRequest("model", got, "a model whose output embeddings are an nn.Linear")
    if not isinstance(model, GenerationMixin):
        raise InvalidRequest("model", type(model).__name__, "a model that can generate")
    k = min(whole("k", k, 1, 1 << 30), layer.out_features)
    with torch.no_grad():
        refuse_more_than_linear(layer)
    _refuse_another_matrix(layer, getattr(model, "final_logits_bias", None), decoder, k, spec)
    normalizer = _normalizer_of(decoder, layer.in_features, spec)
    head = DecoderHead(layer, decoder, k, normalizer, spec)
    return Attachment(model, layer, head, editors)


class Attachment:
    """A model with a DecoderHead as its output layer."""

    def __init__(
        self,
        model: Any,
        layer: nn.Linear,
        head: DecoderHead,
        editors: tuple[type[LogitsProcessor], ...],
    ) -> None:
        self.model, self.head = model, head
        self._layer, self._editors = layer, editors
        self._generate: Any = model.generate
        self._prepare: Any = model._get_logits_processor
        self._bias: Tensor | None = getattr(model, "final_logits_bias", None)
        model.set_output_embeddings(head)
        if self._bias is not None:  # the index includes it
            model.final_logits_bias = torch.zeros_like(self._bias)
        model.generate = self.generate
        model.init_continuous_batching = _refuse_batching  # generate_batch calls it too
        self._watch = model.register_forward_hook(self._refuse_changed_logits)

    def detach(self) -> None:
        """Restore the output layer; may be called again."""
        if self.model.get_output_embeddings() is not self.head:
            return
        self.model.set_output_embeddings(self._layer)
        if self._bias is not None:
            self.model.final_logits_bias = self._bias
        del self.model.generate, self.model.init_continuous_batching
        self._watch.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's `generate`, greedy, sampling or with beams; else InvalidRequest."""
        if kwargs.get("assistant_model") is not None:
            raise InvalidRequest("assistant_model", "a model", "none: decoding is not assisted")
        if kwargs.get("custom_generate") is not None:
            raise InvalidRequest("custom_generate", "a loop of its own", "none: it may draw anyhow")
        if kwargs.get("cache_implementation") == "paged":  # it has its own sampler
            raise InvalidRequest("cache_implementation", "'paged'", "a cache of one batch")
        self._watch.remove()  # registered again, the hook runs after all that the model has by now
        self._watch = self.model.register_forward_hook(self._refuse_changed_logits)
        self.model._get_logits_processor = self._processors
        shared = self.model.config.is_encoder_decoder and not hasattr(self.model, "_reorder_cache")
        if shared:
            self.model._reorder_cache = _reordered
        self.head.whole = True  # for calls before the search, such as Whisper's language detection
        try:
            made = self._generate(*args, **kwargs)
            if self.head.drawing:
                self.head.complete(getattr(made, "scores", None) or ())
            return made
        finally:
            del self.model._get_logits_processor
            if shared:
                del self.model._reorder_cache
            self.head.rest()

    def _processors(self, generation_config: GenerationConfig, **kwargs: Any) -> Any:
        mode = generation_config.get_generation_mode()
        if mode not in SERVED:
            allowed = ", ".join(served.value for served in SERVED)
            raise InvalidRequest("generation_config", mode.value, allowed)
        prepared = self._prepare(generation_config=generation_config, **kwargs)
        unheard = [each for each in prepared if type(each) is WhisperNoSpeechDetection]
        prepared = by_steps(prepared)
        first = guidance(self.head, prepared, mode, self.model)
        self.head.guided = bool(first)
        prepared = [
            each for each in prepared if type(each) not in (WhisperNoSpeechDetection, GUIDE)
        ]
        first += [NoSpeech(self.head, each) for each in unheard]
        editing = editing_processors(prepared, self._editors)
        best = count_of_best(prepared)
        if mode is GenerationMode.BEAM_SAMPLE and not best:  # it needs all logits
            raise InvalidRequest("top_k", 0, "1 or more, or a top_h, where beams are drawn")
        if mode is GenerationMode.SAMPLE and not best:
            drawn = DecoderDraws(self.head, editing, draw_options(prepared))
            read = first_timestamp(editing) is not None
            self.head.serve(generation_config, int(read), drawing=True)
            return LogitsProcessorList([*first, drawn])
        best = max(_pairs(generation_config), best)
        normalised = any(type(each) is LogitNormalization for each in prepared)
        self.head.serve(generation_config, best, drawing=False, normalised=normalised)
        if not editing:
            return LogitsProcessorList([*first, *prepared])
        end = 1 + max(at for at, each in enumerate(prepared) if each in editing)
        known = KnownLogits(self.head, prepared[:end], editing)
        return LogitsProcessorList([*first, known, *prepared[end:]])

    def _refuse_changed_logits(self, model: nn.Module, inputs: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        if logits is None or self.head.hidden_states is None or self.head.whole:
            return
        if not self.head.unchanged(logits):
            allowed = "a model whose logits are what its output layer returns"
            raise InvalidRequest("model", "logits changed after the output layer", allowed)


@torch.no_grad()
def _refuse_another_matrix(
    layer: nn.Linear, bias: Tensor | None, decoder: Decoder, k: int, spec: ModelSpec
) -> None:
    hidden_BD = _random_contexts(layer.in_features)
    reply = decoder.topk(hidden_BD.numpy(), k, **spec)
    ids_BK = torch.from_numpy(reply.ids).long()
    if int(ids_BK.max()) >= layer.out_features:
        raise InvalidRequest("decoder", f"id {int(ids_BK.max())}", f"under {layer.out_features}")
    rows_BKD = layer.weight[ids_BK.to(layer.weight.device)].cpu().double()
    parts_BKD = rows_BKD * hidden_BD[:, None].double()
    logits_BK, magnitude_BK = parts_BKD.sum(2), parts_BKD.abs().sum(2)
    for each in (layer.bias, bias):
        if each is not None:
            added_BK = each.detach().cpu().double().flatten()[ids_BK]
            logits_BK, magnitude_BK = logits_BK + added_BK, magnitude_BK + added_BK.abs()
    # Errors are of float32 sums, and of the index's rounding of each number of W.
    sums, stored = (torch.finfo(kind).eps for kind in (torch.float32, layer.weight.dtype))
    gap_BK = (logits_BK - torch.from_numpy(reply.logits)).abs()
    if (gap_BK > 8 * (sums * magnitude_BK + stored * parts_BKD.norm(dim=2))).any():
        got = f"logits up to {float(gap_BK.max()):.4g} away from the model's own"
        allowed = "an index of the model's output layer, its biases included (see `capture`)"
        raise InvalidRequest("decoder", got, allowed)


def _normalizer_of(decoder: Decoder, dim: int, spec: ModelSpec) -> Any:
    if normalizer := spec.get("normalizer"):
        return normalizer
    return decoder.score(_random_contexts(dim).numpy(), [[0]] * 2, **spec).answer.normalizer


def _pairs(config: GenerationConfig) -> int:
    """Return how many best ids of a row beam search needs, or 1."""
    beams, ends = config.num_beams or 1, getattr(config, "_eos_token_tensor", None)
    return max(2, 1 + (0 if ends is None else len(ends))) * beams if beams > 1 else 1


def _reordered(cache: Any, beams: LongTensor) -> Any:
    """Reorder a cache by `beams` [B], except for encoder states, which a text's beams share."""
    decoded = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    decoded.reorder_cache(beams)
    return cache


def _refuse_batching(*args: Any, **kwargs: Any) -> None:
    raise InvalidRequest("model", "continuous batching, which draws by itself", "model.generate")


def _random_contexts(dim: int) -> Tensor:
    return torch.randn(2, dim, generator=torch.Generator().manual_seed(0))
