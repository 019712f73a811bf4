"""What a client of `POST /v1/completions` may ask, and how answers and errors look on the wire.

The source is OpenAI's API reference. What can't be served is refused by its name: ignored, it would change the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shiplift.runtime.model.generation.front import MAX_STOPS

MOST_PROMPTS, MOST_CHOICES = 64, 128
# Options that change nothing at these values, and that the models behind this can't honour at any other.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1), "echo": (None, False), "frequency_penalty": (None, 0), "logit_bias": (None, {}),
    "logprobs": (None,), "presence_penalty": (None, 0), "suffix": (None, ""),
}  # fmt: skip


class StreamOptions(BaseModel):
    """How a stream ends; `include_usage`: with the number of tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """The body of `POST /v1/completions`: `n` continuations of each prompt. `user` is accepted, and not used.

    What is not given is as the model's author set it, except for `max_tokens`, whose default is OpenAI's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1, max_length=256)
    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
    max_tokens: int = Field(16, ge=1)
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
        for name, values in _NEUTRAL.items():
            if name in body and body[name] not in values:
                raise ValueError(f"{name} is not supported: leave it out")
        return {name: value for name, value in body.items() if name not in _NEUTRAL}

    @model_validator(mode="after")
    def _not_too_many(self) -> "CompletionRequest":
        count = self.n * len(self.prompts)
        if count > MOST_CHOICES:
            raise ValueError(f"n and the prompts ask for {count} answers, the limit is {MOST_CHOICES}")
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for requests with stream: true")
        return self

    @property
    def prompts(self) -> list[str]:
        """The prompts, also if there is only one."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class Problem(Exception):
    """A request that gets an error instead of an answer: its HTTP status, and OpenAI's type and code of the error."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of an answer: its text, the tokens that it adds to both counts, and in the last one why it ended."""

    text: str
    tokens: int
    prompt_tokens: int
    finish_reason: str = ""


class Count:
    """How many tokens the answers to a request took: a prompt is read once, however many answers it has."""

    def __init__(self, request: CompletionRequest) -> None:
        self._answers = request.n
        self._read, self._written = [0] * (len(request.prompts) * request.n), 0

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

    def body(self, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        """A completion, or a part of a streamed one."""
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**head, "choices": list(choices), **({"usage": usage} if usage else {})}


def choice(index: int, text: str, finish_reason: str) -> dict[str, Any]:
    """One answer, or a piece of it."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason or None}


def read(body: bytes) -> CompletionRequest:
    """The request in a body.

    Raises:
        Problem: it is none; the message names the first field that is wrong.
    """
    try:
        return CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise Problem(400, f"{where}: {message}" if where else message) from error
