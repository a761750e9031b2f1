"""llama.cpp as a host: GGUF files, and contexts that leave their output layer to a decoder."""

from logitsieve.utils.environment import require

require("llamacpp", "numba")

from logitsieve.llamacpp.chat import chat_prompt, render_chat  # noqa: E402  after `require`
from logitsieve.llamacpp.context import LlamaContext  # noqa: E402
from logitsieve.llamacpp.model_file import GgufModel, OutputMatrix  # noqa: E402

__all__ = ["GgufModel", "LlamaContext", "OutputMatrix", "chat_prompt", "render_chat"]
