"""Contexts on the fastest engine that knows the file."""

import logging
from pathlib import Path
from typing import Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.context import LlamaContext
from logitsieve.llamacpp.hosts import AUTO, IK, LLAMACPP
from logitsieve.llamacpp.ik import is_installed
from logitsieve.llamacpp.model_file import GgufModel

log = logging.getLogger(__name__)


def open_context(gguf: GgufModel | Path | str, engine: str = AUTO, **options: Any) -> LlamaContext:
    """Open a LlamaContext with its `options` on one of ENGINES.

    "auto" is ik_llama.cpp where it is installed and runs the file, else llama.cpp; the log says
    which, and why.
    """
    if engine != AUTO:
        return LlamaContext(gguf, engine=engine, **options)
    gguf = gguf if isinstance(gguf, GgufModel) else GgufModel(gguf)
    if is_installed():
        try:
            context = LlamaContext(gguf, engine=IK, **options)
        except InvalidRequest as error:
            log.warning("llama.cpp runs the model, as ik_llama.cpp does not: %s", error)
        else:
            log.info("%s runs the model.", context.host.name)
            return context
    return LlamaContext(gguf, engine=LLAMACPP, **options)
