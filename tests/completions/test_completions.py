"""Texts of completions and chats: draws, stops, streams, and the clients that people have."""

import json
import socket
from typing import Any

import httpx2
import pytest

from logitsieve.client.llamacpp import LlamaAttachment
from logitsieve.client.llamacpp_sequences import GenerationOptions
from tests.completions.conftest import NAME, WAIT_S, Client
from tests.llamacpp.small_model import END
from tests.promlint import complaints

pytestmark = pytest.mark.usefixtures("llama_wheel")

PROMPT = "the time of man"
SAMPLED = {"max_tokens": 12, "temperature": 0.9, "top_p": 0.95, "seed": 7}
CHAT = [{"role": "system", "content": "go"}, {"role": "user", "content": PROMPT}]


def texts(made: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in made["choices"]]


def events(client: Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, which ends in [DONE]."""
    reply = httpx2.post(client.address + path, json=body | {"stream": True}, timeout=WAIT_S)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    lines = reply.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_draws_depend_on_the_seed_as_in_generate(client: Client, attached: LlamaAttachment) -> None:
    [alone] = texts(client.completion(prompt=PROMPT, **SAMPLED))
    several = client.completion(prompt=["of", PROMPT, "go back", PROMPT], **SAMPLED)
    assert texts(several)[1] == texts(several)[3] == alone
    assert texts(client.completion(prompt=PROMPT, **SAMPLED | {"seed": 8})) != [alone]
    three = texts(client.completion(prompt=PROMPT, n=3, **SAMPLED))
    assert three[0] == alone
    assert len(set(three)) == 3
    options = GenerationOptions(max_tokens=12, temperature=0.9, top_p=0.95, seeds=7)
    [made] = texts(client.completion(prompt=PROMPT, **SAMPLED))
    generation = attached.generate(PROMPT, **vars(options))
    assert "".join(token.text for token in generation) == made


def test_stops_and_lengths(client: Client) -> None:
    options = {"prompt": PROMPT, "temperature": 0, "max_tokens": 10}
    [whole] = client.completion(**options)["choices"]
    assert whole["finish_reason"] == "length"
    stop = whole["text"][6:9]
    [cut] = client.completion(stop=[stop, "never"], **options)["choices"]
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["finish_reason"] == "stop"


def test_biases_and_penalties(client: Client, attached: LlamaAttachment) -> None:
    options = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8, "logprobs": 0}
    plain = client.completion(**options)["choices"][0]["logprobs"]["tokens"]
    [going] = attached.context.tokenize(" go", begin=False)[-1:]
    forced = client.completion(logit_bias={str(going): 100}, **options)["choices"][0]
    assert len(set(forced["logprobs"]["tokens"])) == 1
    [ended] = client.completion(logit_bias={str(END): 1000}, **options)["choices"]
    assert (ended["finish_reason"], ended["text"]) == ("stop", "")
    fresh = client.completion(logit_bias={str(going): 30}, frequency_penalty=60, **options)
    assert fresh["choices"][0]["logprobs"]["tokens"].count(" go") <= 2
    same = client.completion(repetition_penalty=1.0, **options)["choices"][0]
    assert same["logprobs"]["tokens"] == plain


def test_a_stream_has_the_same_text_and_scores(client: Client) -> None:
    options = {"prompt": [PROMPT, "of"], "echo": True, "logprobs": 2, **SAMPLED}
    whole = client.completion(**options)
    made = events(client, "/v1/completions", stream_options={"include_usage": True}, **options)
    assert made[-1]["usage"] == whole["usage"]
    assert made[-1]["choices"] == []
    for index, choice in enumerate(whole["choices"]):
        own = [e["choices"][0] for e in made[:-1] if e["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        for field, values in choice["logprobs"].items():
            assert [value for one in own for value in one["logprobs"][field]] == values


def test_a_chat_is_a_completion_of_its_template(client: Client) -> None:
    options = {"temperature": 0, "max_tokens": 6}
    status, made = client.post("/v1/chat/completions", {"messages": CHAT, **options})
    assert status == 200
    asked = f"system: go</s>\nuser: {PROMPT}</s>\nanswer:"
    [text] = texts(client.completion(prompt=asked, **options))
    [choice] = made["choices"]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    streamed = events(client, "/v1/chat/completions", messages=CHAT, **options)
    deltas = [event["choices"][0]["delta"] for event in streamed]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == text
    asked_scores = {"messages": CHAT, "logprobs": True, "top_logprobs": 2, **options}
    _, scored = client.post("/v1/chat/completions", asked_scores)
    entries = scored["choices"][0]["logprobs"]["content"]
    assert len(entries) == 6
    for entry in entries:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]
        assert bytes(entry["bytes"]).decode() == entry["token"]


def test_tokens_and_their_texts(client: Client) -> None:
    asked = {"prompt": PROMPT, "add_special_tokens": False}
    _, read = client.post("/tokenize", asked)
    assert read["count"] == len(read["tokens"]) > 0
    _, spelled = client.post("/detokenize", {"tokens": [*map(float, read["tokens"])]})
    assert spelled["prompt"].strip() == PROMPT
    _, begun = client.post("/tokenize", {"prompt": PROMPT})
    assert begun["tokens"][1:] == read["tokens"]
    assert client.post("/tokenize", {"prompt": "", "add_special_tokens": False})[1]["tokens"] == []
    _, facts = client.get("/tokenizer_info")
    assert (facts["bos_token"], facts["eos_token"]) == ("<s>", "</s>")
    assert "message.role" in facts["chat_template"]


def test_models_health_and_metrics(client: Client) -> None:
    _, listed = client.get("/v1/models")
    assert [one["id"] for one in listed["data"]] == [NAME]
    assert client.get(f"/v1/models/{NAME}")[1] == listed["data"][0]
    assert client.get("/v1/models/other")[0] == 404
    assert client.get("/health") == (200, {"status": "ok"})
    client.completion(prompt=PROMPT, max_tokens=1)
    _, text = client.get("/metrics")
    answered = 'logitsieve_completions_requests_total{path="/v1/completions",status="200"}'
    assert answered in text
    for name in ("generation_tokens_total", "prompt_tokens_total", "requests_running"):
        assert f"\nlogitsieve_completions_{name} " in text
    assert complaints(text) == ""


def test_a_client_that_leaves_in_its_body_is_no_incident(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    _, host, port = client.address.replace("//", "").split(":")
    with socket.create_connection((host, int(port))) as leaving:
        leaving.sendall(f"{head}Content-Length: 9\r\n\r\nhalf".encode())
    while 'status="499"' not in client.get("/metrics")[1]:
        pass
    assert not caplog.records


def test_the_official_client(client: Client) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install '.[dev]'")
    with openai.OpenAI(base_url=f"{client.address}/v1", api_key="none", max_retries=0) as official:
        asked: Any = {"prompt": PROMPT, "echo": True, "logprobs": 2, "max_tokens": 2}
        [made] = official.completions.create(model=NAME, temperature=0, **asked).choices
        [same] = client.completion(temperature=0, **asked)["choices"]
        assert made.logprobs.token_logprobs == same["logprobs"]["token_logprobs"]
        chat = {"model": NAME, "messages": CHAT, "max_tokens": 5, "temperature": 0}
        whole = official.chat.completions.create(**chat).choices[0].message.content
        stream = official.chat.completions.create(stream=True, **chat)
        assert "".join(event.choices[0].delta.content or "" for event in stream) == whole
        assert [model.id for model in official.models.list()] == [NAME]
        with pytest.raises(openai.NotFoundError, match="here is only 'small'"):
            official.completions.create(model="other", prompt=PROMPT)
        with pytest.raises(openai.BadRequestError, match="tools: got 0 tools"):
            official.chat.completions.create(tools=[], **chat)
