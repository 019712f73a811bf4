"""The requests of `/v1/completions` and `/v1/chat/completions`, and how answers and errors look on the wire.

The source is OpenAI's API reference. An option that can't be served is refused by name: to ignore it would change the
answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shiplift.runtime.guest.generation.front import MAX_MESSAGES, MAX_STOPS

MOST_PROMPTS, MOST_CHOICES = 64, 128
# Options that have no effect at these values. The models behind this API can't honour any other value.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None,),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
}
_NEUTRAL_IN_CHATS: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "modalities": (None, ["text"]),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "store": (None, False),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "metadata": (None, {}),
}


@dataclass(frozen=True, kw_only=True)
class MessageForm:
    """How answers look on the wire: their names, whole and in parts, and where their text is.

    In a streamed chat, the first part of an answer has no text: it names the speaker's role.
    """

    prefix: str
    whole: str
    part: str
    chat: bool

    def choice(self, index: int, text: str, finish_reason: str) -> dict[str, Any]:
        """A whole answer."""
        held = {"message": {"role": _ASSISTANT, "content": text}} if self.chat else {"text": text}
        return _choice(index, held, finish_reason)

    def piece(self, index: int, text: str, finish_reason: str) -> dict[str, Any]:
        """A piece of a streamed answer."""
        delta = {"content": text} if text else {}
        return _choice(index, {"delta": delta} if self.chat else {"text": text}, finish_reason)

    def openings(self, answers: int) -> list[dict[str, Any]]:
        """The parts of a stream that come before all pieces."""
        opening = {"delta": {"role": _ASSISTANT, "content": ""}}
        return [_choice(index, opening, "") for index in range(answers)] if self.chat else []


_ASSISTANT = "assistant"
COMPLETION = MessageForm(prefix="cmpl", whole="text_completion", part="text_completion", chat=False)
CHAT = MessageForm(prefix="chatcmpl", whole="chat.completion", part="chat.completion.chunk", chat=True)


def _choice(index: int, held: Mapping[str, Any], finish_reason: str) -> dict[str, Any]:
    return {"index": index, **held, "logprobs": None, "finish_reason": finish_reason or None}


class StreamOptions(BaseModel):
    """How a stream ends; `include_usage`: with the number of tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: bool = False


class AnswerOptions(BaseModel):
    """The options of both kinds of requests. `user` is accepted and not used.

    An option that is left out has the value that the model's author set.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    form: ClassVar[MessageForm]
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]]

    model: str = Field(min_length=1, max_length=256)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    seed: int | None = Field(None, ge=0, lt=1 << 31)
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name, values in cls.neutral.items():
            if name in body and body[name] not in values:
                raise ValueError(f"{name} is not supported: leave it out")
        return {name: value for name, value in body.items() if name not in cls.neutral}

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if self.answers > MOST_CHOICES:
            raise ValueError(f"n and the prompts ask for {self.answers} answers, the limit is {MOST_CHOICES}")
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for requests with stream: true")
        return self

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def prompts(self) -> list[str]:
        """The model's inputs, for `n` answers each."""
        raise NotImplementedError

    @property
    def most_tokens(self) -> int | None:
        """How many tokens an answer may have; None: as many as fit."""
        raise NotImplementedError

    @property
    def answers(self) -> int:
        """How many answers the request asks for."""
        return self.n * len(self.prompts)


_Request = TypeVar("_Request", bound=AnswerOptions)


class CompletionRequest(AnswerOptions):
    """The body of `POST /v1/completions`: `n` continuations of each prompt. `max_tokens` has OpenAI's default."""

    form, neutral = COMPLETION, _NEUTRAL

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
    max_tokens: int = Field(16, ge=1)

    @property
    def prompts(self) -> list[str]:
        """The prompts, as a list even if there is only one."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def most_tokens(self) -> int | None:
        """How many tokens an answer may have."""
        return self.max_tokens


class TextPart(BaseModel):
    """A part of a message's content. Of OpenAI's kinds, the models here take only text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: str = Field(min_length=1, max_length=64)
    content: str | list[TextPart]
    name: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _of_text(cls, content: Any) -> Any:
        parts = content if isinstance(content, list) else []
        kinds = {str(part.get("type")) for part in parts if isinstance(part, dict)} - {"text"}
        if kinds:
            raise ValueError(f"parts of the type {min(kinds)!r} are not supported: the models here take text")
        return content

    def plain(self) -> dict[str, str]:
        """The message as chat templates take it: parts of text are lines."""
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return {"role": self.role, "content": text, **({"name": self.name} if self.name else {})}


class ChatRequest(AnswerOptions):
    """The body of `POST /v1/chat/completions`: `n` answers to a conversation, each of as many tokens as fit."""

    form, neutral = CHAT, _NEUTRAL_IN_CHATS

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @cached_property
    def prompts(self) -> list[str]:
        """The conversation, as JSON."""
        return [json.dumps([message.plain() for message in self.messages])]

    @property
    def most_tokens(self) -> int | None:
        """How many tokens an answer may have; None: as many as fit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class RequestProblem(Exception):
    """A request that gets an error instead of an answer: its HTTP status, and OpenAI's type and code of the error."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of an answer: its text, the tokens that it adds to both counts, and in the last piece why it ended."""

    text: str
    tokens: int
    prompt_tokens: int
    finish_reason: str = ""


class Count:
    """Counts the tokens of the answers to a request. A prompt counts once, however many answers it has."""

    def __init__(self, request: AnswerOptions) -> None:
        self._answers = request.n
        self._read, self._written = [0] * request.answers, 0

    def add(self, number: int, piece: Piece) -> None:
        """Adds a piece of the answer of that number."""
        self._read[number] += piece.prompt_tokens
        self._written += piece.tokens

    def usage(self) -> dict[str, int]:
        """How many were read and written."""
        read = sum(self._read[:: self._answers])
        return {"prompt_tokens": read, "completion_tokens": self._written, "total_tokens": read + self._written}


@dataclass(frozen=True, kw_only=True)
class Head:
    """What all parts of the answer to one request share. `created` is in seconds since the epoch."""

    id: str
    created: int
    model: str

    def body(self, kind: str, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        """An answer of that kind, or a part of a streamed one."""
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "choices": list(choices), **({"usage": usage} if usage else {})}


def read(kind: type[_Request], body: bytes) -> _Request:
    """The request of that kind in a body.

    Raises:
        RequestProblem: the body is invalid; the message names the first wrong field.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise RequestProblem(400, f"{where}: {message}" if where else message) from error
