"""Render a message by the chat template of a GGUF file.

The template, a Jinja program, runs in Jinja's sandbox with the functions that Hugging Face defines.
"""

from __future__ import annotations

import datetime
from typing import NoReturn

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.model import LlamaModel
from logitsieve.utils.environment import require

ALLOWED = "a model whose file has a chat template that takes these messages"
FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # of a template


def chat_prompt(model: LlamaModel, message: str, system: str | None = None) -> str:
    """Return the prompt of a user's message, after an optional system message, up to the answer.

    InvalidRequest names `chat` if the file has no template or it refuses the messages; MissingExtra
    without Jinja.
    """
    require("llamacpp", "jinja2")
    import jinja2
    import jinja2.sandbox

    gguf = model.gguf
    if gguf.chat_template is None:
        raise InvalidRequest("chat", f"{gguf.path}, without a chat template", ALLOWED)
    given = {"system": system, "user": message}
    messages = [{"role": role, "content": text} for role, text in given.items() if text is not None]
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    begin = "" if model.begin else gguf.special("bos")  # else it would occur twice
    try:
        return environment.from_string(gguf.chat_template).render(
            messages=messages,
            add_generation_prompt=True,
            bos_token=begin,
            eos_token=gguf.special("eos"),
        )
    except (jinja2.TemplateError, *FAILURES) as error:
        raise InvalidRequest("chat", f"{gguf.path}: {error}", ALLOWED) from error


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
