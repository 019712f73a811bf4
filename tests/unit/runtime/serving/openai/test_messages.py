"""What may be asked in OpenAI's terms, and what is refused by its name."""

import json
from typing import Any

import pytest

from shiplift.runtime.serving.openai import messages
from shiplift.runtime.serving.openai.messages import MOST_CHOICES, ChatRequest, CompletionRequest, RequestProblem


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "writer", "prompt": "a", **fields}).encode()


def read(text: bytes) -> CompletionRequest:
    return messages.read(CompletionRequest, text)


def chat(**fields: Any) -> ChatRequest:
    said = {"model": "writer", "messages": [{"role": "user", "content": "a"}], **fields}
    return messages.read(ChatRequest, json.dumps(said).encode())


def test_missing_options_are_left_to_the_model_except_for_openai_s_sixteen_tokens() -> None:
    asked = read(body())
    assert (asked.prompts, asked.stops, asked.max_tokens, asked.n) == (["a"], [], 16, 1)
    assert (asked.temperature, asked.top_p, asked.seed) == (None, None, None)


def test_one_text_and_a_list_of_texts_are_the_same_to_a_reader() -> None:
    asked = read(body(prompt=["a", "b"], stop="end", n=2))
    assert (asked.prompts, asked.stops) == (["a", "b"], ["end"])


@pytest.mark.parametrize(
    "neutral",
    [
        {"best_of": 1},
        {"echo": False},
        {"logprobs": None},
        {"suffix": None},
        {"logit_bias": {}},
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"user": "someone"},
    ],
)
def test_options_without_effect_are_accepted(neutral: dict[str, Any]) -> None:
    assert read(body(**neutral)).prompts == ["a"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": 3}, "logprobs is not supported: leave it out"),
        ({"echo": True}, "echo is not supported"),
        ({"best_of": 2}, "best_of is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty is not supported"),
        ({"top_k": 5}, "top_k: Extra inputs are not permitted"),
        ({"prompt": [1, 2, 3]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p: Input should be greater than 0"),
        ({"seed": -1}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"n": 100, "prompt": ["a", "b"]}, f"ask for 200 answers, the limit is {MOST_CHOICES}"),
        ({"stream_options": {"include_usage": True}}, "stream_options is for requests with stream: true"),
        ({"model": ""}, "model"),
    ],
)
def test_what_can_t_be_served_is_refused_by_its_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestProblem, match=message) as refused:
        read(body(**fields))
    assert refused.value.status == 400
    assert refused.value.body["error"]["type"] == "invalid_request_error"


def test_a_conversation_is_one_prompt_as_json_and_may_have_any_number_of_tokens() -> None:
    asked = chat()
    assert [json.loads(prompt) for prompt in asked.prompts] == [[{"role": "user", "content": "a"}]]
    assert (asked.most_tokens, asked.form.chat) == (None, True)
    assert (chat(max_tokens=3).most_tokens, chat(max_tokens=3, max_completion_tokens=5).most_tokens) == (3, 5)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (prompt,) = chat(messages=[{"role": "user", "content": parts, "name": "ann"}]).prompts
    assert json.loads(prompt) == [{"role": "user", "content": "a\nb", "name": "ann"}]


@pytest.mark.parametrize(
    "neutral",
    [
        {"tools": []},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"logprobs": False},
        {"frequency_penalty": 0},
        {"parallel_tool_calls": True},
        {"store": None},
        {"modalities": ["text"]},
    ],
)
def test_options_without_effect_in_a_chat_are_accepted(neutral: dict[str, Any]) -> None:
    assert chat(**neutral).n == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content: parts of the type 'image_url' are not supported",
        ),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": []}]}, "tool_calls"),
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"logprobs": True}, "logprobs is not supported"),
        ({"prompt": "a"}, "prompt: Extra inputs are not permitted"),
        ({"n": 129}, "n"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_what_a_chat_can_t_have_is_refused_by_its_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestProblem, match=message):
        chat(**fields)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'"a"', b"\xff", b'{"model": "writer"}'])
def test_an_invalid_request_is_refused(text: bytes) -> None:
    with pytest.raises(RequestProblem) as refused:
        read(text)
    assert refused.value.status == 400
