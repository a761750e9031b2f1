"""Render the prompts of chats by the template in a GGUF file, as Hugging Face does."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from os.path import commonprefix
from typing import Any, Protocol, Self

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.model_file import GgufModel
from logitsieve.utils.environment import require

TEMPLATED = "a model whose file has a chat template that takes these messages"
SPECIAL = {  # names in templates -> names in GGUF files
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
PRIVATE = range(0xF0000, 0xFFFFE)  # characters for private use

Messages = Sequence[Mapping[str, Any]]
Given = Mapping[str, Any]  # messages and tools


class Model(Protocol):
    @property
    def gguf(self) -> GgufModel: ...


class ChatPrompt(str):
    """A rendered chat, which includes all special tokens that the template wrote.

    `LlamaModel.tokenize` adds no first token to it, and takes names of special tokens that occur in
    messages for plain text.
    """

    __slots__ = ("_given", "_render")
    _given: Given
    _render: Callable[[Given], str]

    def __new__(cls, render: Callable[[Given], str], given: Given) -> Self:
        made = super().__new__(cls, render(given))
        made._render, made._given = render, given
        return made

    def parts(self, name: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
        """Yield parts of the text, and whether `name` finds special tokens in them.

        A part between two special tokens of the template is plain text if a message in it has the
        name of one.
        """
        texts = [*_texts(self._given)]
        if not any(map(name.search, texts)):
            yield str(self), True
            return
        taken = {*self, *"".join(texts)}
        first, last = islice((mark for mark in map(chr, PRIVATE) if mark not in taken), 2)

        def marked(text: str) -> str:
            return name.sub(rf"{first}\g<0>{last}", text)

        rendered = self._render(_mapped(self._given, marked))
        unmarked = dict.fromkeys(map(ord, (first, last)))
        if rendered.translate(unmarked) != self:
            got = "a special token's name in a message, which the template changes"
            raise InvalidRequest("chat", got, TEMPLATED)
        told = re.compile(f"{first}(?:{name.pattern}){last}|[{first}{last}]|({name.pattern})")
        yield from _parts(rendered, told, unmarked)


def _parts(
    rendered: str, told: re.Pattern[str], unmarked: dict[int, None]
) -> Iterator[tuple[str, bool]]:
    done = start = 0  # end of the text that was yielded, and of the template's last special token
    plain = False  # a message has a special token's name after `start`
    for match in told.finditer(rendered):
        if match[1] is None:
            plain = True
            continue
        if plain:
            yield rendered[done:start], True
            yield rendered[start : match.start()].translate(unmarked), False
            done = match.start()
        start, plain = match.end(), False
    yield rendered[done : start if plain else None], True
    if plain:
        yield rendered[start:].translate(unmarked), False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield key
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(each, change) for key, each in value.items()}
    return [_mapped(each, change) for each in value] if isinstance(value, list | tuple) else value


def any_of(names: Collection[str]) -> re.Pattern[str]:
    """Return a pattern for the longest of `names`: a prefix tree, as there may be thousands."""
    return re.compile(_branches(names) or "(?!)")


def _branches(names: Collection[str]) -> str:
    ways = []
    for _, group in groupby(sorted(filter(None, names)), key=itemgetter(0)):
        alike = list(group)
        begun = commonprefix(alike)  # noqa: RUF071  no paths
        rest = _branches([one[len(begun) :] for one in alike]) if len(alike) > 1 else ""
        ways.append(re.escape(begun) + rest)
    return f"(?:{'|'.join(ways)})" + "?" * ("" in names) if ways else ""


def chat_prompt(model: Model, message: str, system: str | None = None) -> ChatPrompt:
    given = {"system": system, "user": message}
    return render_chat(
        model, [{"role": role, "content": text} for role, text in given.items() if text is not None]
    )


def render_chat(
    model: Model, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None
) -> ChatPrompt:
    """Render messages, each with a `role` and its `content`, up to where the answer begins.

    Raises InvalidRequest (`chat`) if there is no template or it refuses the messages, and
    MissingExtra without Jinja.
    """
    require("llamacpp", "jinja2")
    from logitsieve.llamacpp.template import FAILURES, render

    template = model.gguf.chat_template
    if template is None:
        raise InvalidRequest("chat", "a file without a chat template", TEMPLATED)
    special = {name: text for name, key in SPECIAL.items() if (text := model.gguf.special(key))}

    def rendered(given: Given) -> str:
        try:
            return render(
                template,
                messages=given["messages"],
                tools=given["tools"],
                documents=None,
                add_generation_prompt=True,
                **special,
            )
        except FAILURES as error:
            reason = ascii(str(error) or type(error).__name__)[1:-1]
            raise InvalidRequest("chat", f"{reason:.160}", TEMPLATED) from error

    return ChatPrompt(rendered, {"messages": messages, "tools": tools})
