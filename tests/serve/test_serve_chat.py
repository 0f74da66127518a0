"""A Hugging Face folder behind both of OpenAI's endpoints, asked by OpenAI's own client."""

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from tiny import NAME, running_server, serving
from tiny_hf import tiny_llama
from waiting import HANG

from windtunnel.data import time_limit
from windtunnel.generate import load_source
from windtunnel.generate.folder_text import FolderText
from windtunnel.recipe import UserError

HELLO = [{"role": "system", "content": "one"}, {"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("chat") / "tiny-chat")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    source = load_source(folder)
    try:
        with serving(source.generator, source.name) as address:
            yield address
    finally:
        source.generator.close()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=HANG) as made:
        yield made


def test_a_conversation_is_what_the_template_makes_of_it(client: openai.OpenAI, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, ids["input_ids"].size(1) :]
    answer = client.chat.completions.create(model="tiny-chat", messages=HELLO, max_tokens=20, temperature=0)
    (choice,) = answer.choices
    assert choice.message.content == tokenizer.decode(made, skip_special_tokens=True)
    assert (choice.message.role, answer.object) == ("assistant", "chat.completion")
    assert choice.finish_reason == ("stop" if 2 in made else "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == ids["input_ids"].size(1)
    parts = [{"role": "system", "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}]}, HELLO[1]]
    same = client.chat.completions.create(model="tiny-chat", messages=parts, max_completion_tokens=20, temperature=0)
    assert same.choices[0].message == choice.message
    dumped = [*HELLO, choice.message.model_dump(), {"role": "user", "content": "two"}]  # as clients send history
    assert client.chat.completions.create(model="tiny-chat", messages=dumped, max_tokens=5).choices[0].message.content


def test_streams_say_the_same(client: openai.OpenAI) -> None:
    arguments = {"model": "tiny-chat", "messages": HELLO, "max_tokens": 30, "seed": 3, "temperature": 0.8, "top_p": 0.9, "n": 2}
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    for index in range(2):
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in own) == whole.choices[index].message.content
        assert [choice.finish_reason for choice in own if choice.finish_reason] == [whole.choices[index].finish_reason]
    assert chunks[-1].usage == whole.usage
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({c.id for c in chunks}) == 1


def test_who_asks_changes_nothing(client: openai.OpenAI) -> None:
    """Some clients send these always."""
    given = {"model": "tiny-chat", "messages": HELLO, "max_tokens": 8, "temperature": 0}
    told = client.chat.completions.create(**given, safety_identifier="someone", prompt_cache_key="a", user="b")
    assert told.choices == client.chat.completions.create(**given).choices


@pytest.mark.parametrize("stream", [False, True])
def test_load_generators_get_as_many_tokens_as_they_ask_for(client: openai.OpenAI, stream: bool) -> None:
    """As guidellm asks: `ignore_eos`, no stop, usage in every event."""
    for seed in range(8):  # of these random answers some end sooner
        given = {"model": "tiny-chat", "messages": HELLO, "max_completion_tokens": 48, "seed": seed, "temperature": 2.0}
        more = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}} if stream else {}
        answer = client.chat.completions.create(**given, stop=None, stream=stream, extra_body={"ignore_eos": True, **more})
        parts = list(answer) if stream else [answer]
        assert parts[-1].usage.completion_tokens == 48
        assert next(p.choices[0].finish_reason for p in parts if p.choices and p.choices[0].finish_reason) == "length"


def test_log_probabilities_and_stops(client: openai.OpenAI) -> None:
    arguments = {"model": "tiny-chat", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    answer = client.chat.completions.create(**arguments, logprobs=True, top_logprobs=3)
    (choice,) = answer.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert len(content) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 3 and token.logprob == token.top_logprobs[0].logprob for token in content)
    streamed = client.chat.completions.create(**arguments, logprobs=True, top_logprobs=3, stream=True)
    got = [token for c in streamed if c.choices[0].logprobs for token in c.choices[0].logprobs.content or []]
    assert got == content
    text = choice.message.content or ""
    stop = text[4:7]
    cut = client.chat.completions.create(**arguments, stop=stop).choices[0]
    assert (cut.message.content, cut.finish_reason) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_bytes_of_tokens_are_the_content_s_also_inside_characters(client: openai.OpenAI, stream: bool) -> None:
    arguments = {"model": "tiny-chat", "messages": HELLO, "max_tokens": 60, "temperature": 1.9, "seed": 5}
    given = client.chat.completions.create(**arguments, logprobs=True, top_logprobs=2, stream=stream)
    choices = [c.choices[0] for c in given] if stream else given.choices
    content = "".join((c.delta if stream else c.message).content or "" for c in choices)
    tokens = [token for c in choices if c.logprobs for token in c.logprobs.content or []]
    assert b"".join(bytes(token.bytes or ()) for token in tokens).decode("utf-8", "replace") == content
    split = [token for token in tokens if token.token.startswith("bytes:")]
    assert split  # of a vocabulary of bytes, many are no character
    assert all(token.token == "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes) for token in split)


def test_plain_completions_of_the_same_folder(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny-chat", prompt="The cat", max_tokens=8, temperature=0, logprobs=1, echo=True)
    (choice,) = answer.choices
    assert choice.text.startswith("The cat")
    assert choice.logprobs is not None
    assert len(choice.logprobs.tokens or []) == answer.usage.total_tokens
    many = client.completions.create(model="tiny-chat", prompt=["The cat", "one"], n=2, max_tokens=4, temperature=0)
    assert many.choices[0].text == many.choices[1].text


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"messages": []}, "messages", "Invalid 'messages': empty array."),
        ({"messages": [{"content": "x"}]}, "messages", "Missing required parameter: 'messages[0].role'."),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages", "the role 'poet' is not one of"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "unknown role tool"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
            "messages: content of type 'image_url' is not supported, only 'text'",
        ),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages", "messages: 'tool_calls' in"),
        ({"messages": [{"role": "user", "content": "x " * 500}]}, "messages", "the model's context is 256"),
        ({"max_completion_tokens": 10_000}, "max_completion_tokens", "at most 200"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported by this server, only []"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text"),
        ({"n": 100}, "n", "at most"),
    ],
)
def test_wrong_requests_are_400_and_name_the_field(url: str, fields: dict[str, object], param: str, part: str) -> None:
    body = {"model": "tiny-chat", "messages": HELLO, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=HANG)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert part in error["message"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"temperature": 9}, "decimal_above_max_value"),
        ({"max_tokens": 0}, "integer_below_min_value"),
        ({"max_tokens": "4"}, "invalid_type"),
        ({"messages": None}, "invalid_type"),
        ({"messages": []}, "empty_array"),
        ({"stop": ["a"] * 5}, "array_above_max_length"),
        ({"user": "a" * 600}, "string_above_max_length"),
        ({"messages": [{"role": "user", "content": "x"}, {}]}, "missing_required_parameter"),
        ({"tools": [{"type": "function"}]}, "unsupported_value"),
    ],
)
def test_codes_are_openais(url: str, fields: dict[str, object], code: str) -> None:
    response = httpx.post(f"{url}/v1/chat/completions", json={"model": "tiny-chat", "messages": HELLO, **fields}, timeout=HANG)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)


def test_a_template_may_have_roles_of_its_own(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "any")
    text = FolderText(folder)
    text.inner.chat_template = "{% for m in messages %}{% if m.role == 'ipython' %}tool: {% endif %}{{ m.content }}{% endfor %}"
    assert text.chat([{"role": "ipython", "content": "one"}]) == text.encode("tool: one")
    assert text.chat([{"role": "developer", "content": "one"}]) == text.encode("one")
    with pytest.raises(UserError, match="the role 'poet' is not one of developer, system"):
        text.chat([{"role": "poet", "content": "one"}])


def test_answers_end_where_the_tokenizer_or_the_model_s_files_say(tmp_path: Path) -> None:
    """A base model's config.json may name another token than the one that its tokenizer ends answers with, as vLLM knows."""
    source = load_source(tiny_llama(tmp_path / "fine-tuned", eos_token_id=0))
    assert source.generator.text.ends == {0, 2}
    source.generator.close()


def test_an_endless_template_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "TEMPLATE_SECONDS", 0.2)
    text = FolderText(folder)
    text.inner.chat_template = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(UserError, match="refuses these messages: it computes for too long"):
        text.chat(HELLO)


def test_a_model_without_a_template_says_what_to_use() -> None:
    with running_server() as (url, _):
        body = {"model": NAME, "messages": HELLO}
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=HANG)
        assert response.status_code == 400
        assert "/v1/completions" in response.json()["error"]["message"]


def test_another_models_tokenizer_is_a_wrong_request_and_the_server_lives(tmp_path: Path) -> None:
    source = load_source(tiny_llama(tmp_path / "fewer-rows", vocab_size=200))
    try:
        with serving(source.generator, source.name) as url:
            ids = source.generator.text.encode("The cat one two")
            for prompt in ("The cat one two", [*ids]):
                body = {"model": "fewer-rows", "prompt": prompt, "max_tokens": 2}
                response = httpx.post(f"{url}/v1/completions", json=body, timeout=HANG)
                assert response.status_code == 400
                assert "is outside the model's vocabulary of 200" in response.json()["error"]["message"]
            body = {"model": "fewer-rows", "prompt": [5, 6], "max_tokens": 2}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=HANG).status_code == 200
    finally:
        source.generator.close()


def test_a_truncated_file_of_weights_is_told_as_training_tells_it(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors is truncated") as refused:
        load_source(folder)
    assert "windtunnel fetch" in (refused.value.fix or "")
