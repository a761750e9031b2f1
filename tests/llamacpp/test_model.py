import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.model import LlamaModel
from tests.llamacpp.small_model import BEGIN, END, Make
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("llama_wheel")

TEXT = "the time of man, and after that we go back to work."


def test_text_and_tokens(make_gguf: Make) -> None:
    with LlamaModel(make_gguf()) as model:
        tokens = model.tokenize(TEXT)
        assert b"".join(map(model.piece, tokens)).decode() == " " + TEXT
        assert model.begin == [BEGIN]
        assert model.tokenize("the") == [BEGIN, *model.tokenize("the", begin=False)]
        assert model.tokenize("the</s>")[-1] == END
        assert model.tokenize("the</s>", special=False)[-1] != END
        assert model.ends(END)
        assert not model.ends(300)
        assert b"".join(map(model.piece, model.tokenize("é日"))).decode() == " é日"
        with refused("text", "got '', of no tokens"):
            model.tokenize("", begin=False)
        with refused("text", "text that UTF-8 can hold"):
            model.tokenize("\ud800")
    with pytest.raises(InvalidRequest, match="closed"):
        model.tokenize("the")
    model.close()


def test_models_that_llama_cpp_refuses_are_named(make_gguf: Make) -> None:
    path = make_gguf(leave_out=("blk.1.ffn_down.weight",))
    with pytest.raises(InvalidRequest, match="ffn_down") as caught:
        LlamaModel(path)
    assert str(path) in str(caught.value)
    assert "loading tensor" not in str(caught.value)  # progress, no error
    with (
        LlamaModel(make_gguf(vocabulary=False)) as model,
        pytest.raises(InvalidRequest, match="the model has no tokenizer"),
    ):
        model.tokenize("the")


def test_bytes_without_a_token_are_refused_where_llama_cpp_would_read_for_ever(
    make_gguf: Make,
) -> None:
    with LlamaModel(make_gguf(tokenizer="rwkv")) as model:
        assert len(model.tokenize("the")) == 3
        with refused("text", "got '<', allowed: .* lacks tokens of bytes"):
            model.tokenize("the<")


def test_a_file_without_a_token_that_llama_cpp_adds_to_each_text_is_named(make_gguf: Make) -> None:
    begun = (("tokenizer.ggml.add_bos_token", True),)
    with refused("model", "special_bos_id"):
        LlamaModel(make_gguf(tokenizer="t5", keys=begun))
