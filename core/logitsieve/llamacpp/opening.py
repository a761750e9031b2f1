import logging
from pathlib import Path
from typing import Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.context import LlamaContext
from logitsieve.llamacpp.hosts import AUTO, ENGINES, IK, LLAMACPP
from logitsieve.llamacpp.ik import is_installed
from logitsieve.llamacpp.model_file import GgufModel

log = logging.getLogger(__name__)


def open_context(gguf: GgufModel | Path | str, engine: str = AUTO, **options: Any) -> LlamaContext:
    """Open a LlamaContext with its `options` on one of ENGINES; or InvalidRequest.

    "auto" is ik_llama.cpp if it is installed and runs the file, else llama.cpp; it logs which.
    """
    if engine not in ENGINES:
        raise InvalidRequest("engine", repr(engine), ", ".join(ENGINES))
    if engine != AUTO:
        return LlamaContext(gguf, engine=engine, **options)
    gguf = gguf if isinstance(gguf, GgufModel) else GgufModel(gguf)
    refusal = None
    if is_installed():
        try:
            context = LlamaContext(gguf, engine=IK, **options)
        except InvalidRequest as error:
            refusal = str(error)
        else:
            log.info("%s runs the model.", context.host.name)
            return context
    context = LlamaContext(gguf, engine=LLAMACPP, **options)
    if refusal is not None:
        log.warning("llama.cpp runs the model, as ik_llama.cpp does not: %s", refusal)
    return context
