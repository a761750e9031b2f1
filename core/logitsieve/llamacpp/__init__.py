"""Read GGUF files, and run their models in llama.cpp or ik_llama.cpp without the output layer."""

from logitsieve.utils.environment import require

require("llamacpp", "numba")

from logitsieve.llamacpp.chat import chat_prompt, render_chat  # noqa: E402  after `require`
from logitsieve.llamacpp.context import LlamaContext  # noqa: E402
from logitsieve.llamacpp.hosts import ENGINES  # noqa: E402
from logitsieve.llamacpp.model_file import GgufModel, OutputMatrix  # noqa: E402
from logitsieve.llamacpp.opening import open_context  # noqa: E402

__all__ = [
    "ENGINES", "GgufModel", "LlamaContext", "OutputMatrix", "chat_prompt", "open_context",
    "render_chat",
]  # fmt: skip
