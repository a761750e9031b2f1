import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp import LlamaContext, chat_prompt
from tests.llamacpp.small_model import CHAT, Make
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("llama_wheel")


def test_messages_are_put_as_the_template_has_them(make_gguf: Make) -> None:
    with LlamaContext(make_gguf(chat_template=CHAT)) as context:
        assert chat_prompt(context, "go <b>") == "user: go <b></s>\nanswer:"
        expected = "system: be new</s>\nuser: go</s>\nanswer:"
        assert chat_prompt(context, "go", "be new") == expected
        assert context.tokenize(expected).count(context.begin[0]) == 1
    template = "{{ strftime_now('%Y') }} {{ messages[0].content }}"
    with LlamaContext(make_gguf(chat_template=template)) as context:
        assert chat_prompt(context, "go")[4:] == " go"
    plain = r"\.gguf, without a chat template"
    with LlamaContext(make_gguf()) as context, refused("chat", plain):
        chat_prompt(context, "go")


BAD = {
    "no system": "{{ raise_exception('no system') }}",
    "unexpected": "{% if %}",
    "unsafe": "{{ messages.__class__.__base__.__subclasses__() }}",
    "attribute '__class__' of 'str'": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "it takes more than 2 s": 2 * "{% for a in range(9999) %}" + 2 * "{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "has no attribute 'x'": "{{ messages[0].content.x.y }}",
    "division": "{{ 1 / 0 }}",
    "no element 7": "{{ messages[7].content.upper() }}",
}


@pytest.mark.parametrize("reason", BAD)
def test_a_template_that_fails_is_refused(make_gguf: Make, reason: str) -> None:
    with LlamaContext(make_gguf(chat_template=BAD[reason])) as context:
        with pytest.raises(InvalidRequest, match="chat: got") as error:
            chat_prompt(context, "go")
        assert reason in str(error.value) or reason == "unexpected"
