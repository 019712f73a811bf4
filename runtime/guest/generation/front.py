"""Turns requests into tokens and tokens into pieces of text: limits, tokenization, stop texts.

The same code checks a model and serves it. Tokenizers run in their Rust library from `tokenizer.json`, never through an
author's Python classes.

Process: Triton's Python backend, as `front.py` beside `panics.py`; Shiplift's sandbox.
Python: the server's
Packages: tokenizers (in the package)
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

if __package__:
    from ..fronts.panics import contained  # noqa: TID251, TID252 - in Shiplift
else:
    from panics import contained

TOKENIZER, SETTINGS = "tokenizer.json", "generation.json"
MAX_PROMPT_BYTES = 1 << 20
MAX_STOPS, MAX_STOP_CHARACTERS = 4, 200
MAX_MESSAGES = 1024
MAX_TEMPERATURE = 10.0
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token that is a byte, in vocabularies with byte fallback
_HALF = "\ufffd"  # replaces bytes that are not a character
_HELD = 64  # at most this many tokens wait for the rest of a character


class BadRequest(ValueError):
    """A request that the model can't take. `str()` is for the client that sent it."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What to generate: at most `max_tokens` after the tokens of the prompt, up to one of the texts in `stop`.

    A `temperature` of 0 takes the most likely token each time. Otherwise tokens are drawn from the most likely ones
    that together have `top_p` of the probability, with a generator that starts from `seed`.
    """

    ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int = 0
    stop: tuple[str, ...] = ()


class GenerationFront:
    """The code around a model that generates.

    `generation.json` has `context`, the most tokens of prompt and answer together; `stop_ids`, the tokens that end an
    answer; `top_k` (0: all) and `repetition_penalty`, as the author set them; and the default `temperature` and `top_p`
    of a request.
    """

    def __init__(self, folder: Path, *, max_prompt_tokens: int, max_tokens: int) -> None:
        """`max_prompt_tokens` and `max_tokens` (of an answer) are the site's limits, within the model's context."""
        self.settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())
        with contained(ValueError, f"reading {TOKENIZER}"):
            self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.max_prompt_tokens = min(max_prompt_tokens, self.settings["context"] - 1)
        self.max_tokens = min(max_tokens, self.settings["context"] - 1)

    def read(self, fields: Mapping[str, Any]) -> Ask:
        """Reads a request from `fields`: `prompt`, and optionally `max_tokens`, `temperature`, `top_p`, `seed`, `stop`.

        A prompt that is `rendered` from a conversation already has its special tokens.

        Raises:
            BadRequest: a field is malformed, or exceeds a limit.
        """
        ids = tuple(self._tokens(text_in(fields["prompt"], "the prompt"), special=not fields.get("rendered")))
        ask = Ask(
            ids=ids,
            max_tokens=self._most(fields.get("max_tokens"), len(ids)),
            temperature=float(fields.get("temperature", self.settings["temperature"])),
            top_p=float(fields.get("top_p", self.settings["top_p"])),
            seed=int(fields.get("seed", 0)),
            stop=tuple(text_in(item, "a stop text") for item in fields.get("stop", ())),
        )
        _check_sampling(ask)
        _check_stops(ask.stop)
        return ask

    def _tokens(self, prompt: str, *, special: bool) -> list[int]:
        with contained(BadRequest, "the model's tokenizer"):
            ids: list[int] = self.tokenizer.encode(prompt, add_special_tokens=special).ids
        if not ids:
            raise BadRequest("the prompt is empty: it has no tokens")
        if len(ids) > self.max_prompt_tokens:
            raise BadRequest(f"the prompt has {len(ids)} tokens, the limit is {self.max_prompt_tokens}: shorten it")
        return ids

    def _most(self, wanted: Any, prompt_tokens: int) -> int:
        """How many tokens may be generated: the number that the request asks for, or else as many as fit."""
        context: int = self.settings["context"]
        room: int = min(self.max_tokens, context - prompt_tokens)
        if wanted is None:
            return room
        count = int(wanted)
        if not 1 <= count <= self.max_tokens:
            raise BadRequest(f"max_tokens is {count}, it must be from 1 to {self.max_tokens}")
        if count > room:
            raise BadRequest(
                f"the prompt has {prompt_tokens} tokens and max_tokens is {count}: together they exceed the model's "
                f"{context}"
            )
        return count

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of an answer's tokens, without special ones and the one that ended it."""
        shown = ids[:-1] if ids and ids[-1] in self.settings["stop_ids"] else ids
        return self.decoded(shown)

    def decoded(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones.

        Raises:
            ValueError: the tokenizer panics.
        """
        with contained(ValueError, "the model's tokenizer"):
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


class Pieces:
    """An answer's text as its tokens arrive: text that is certain is given out, and the first stop text ends it.

    All pieces together are the text of all tokens, up to the stop text. A possible beginning of a stop text, or half a
    character, is kept back until the next token. Byte tokens are kept back until another token comes, since a run of
    bytes is decoded as a whole. (The `DecodeStream` of tokenizers 0.23 raises there: "Invalid prefix encountered".)
    """

    def __init__(self, front: GenerationFront, stop: Sequence[str]) -> None:
        self._front, self._stop = front, tuple(stop)
        self._ids: list[int] = []
        self._shown: list[int] = []  # without those that end an answer
        self._before = self._read = (
            0  # the tokens before `_read` are in the text; those from `_before` on were the last
        )
        self._text, self._given = "", 0
        self.stopped = False

    def add(self, ids: Sequence[int]) -> str:
        """The text that is certain after these tokens; empty after a stop text."""
        for token in ids:
            self._ids.append(token)
            if token not in self._front.settings["stop_ids"]:
                self._shown.append(token)
                self._text += self._decoded()
        return self._next(final=False)

    def _decoded(self) -> str:
        """The text of the tokens since the last certain one, if it is certain. Earlier tokens say how it begins."""
        held = len(self._shown) - self._read
        if _BYTE.fullmatch(self._front.tokenizer.id_to_token(self._shown[-1]) or ""):
            return ""
        before, whole = (
            self._front.decoded(tokens)
            for tokens in (self._shown[self._before : self._read], self._shown[self._before :])
        )
        if whole.endswith(_HALF) and held < _HELD:
            return ""
        self._before, self._read = self._read, len(self._shown)
        return whole[len(before) :]

    def close(self) -> str:
        """The rest of the text, when no more tokens will come."""
        whole = self._front.text_of(self._ids)
        if not self.stopped and whole.startswith(self._text):
            self._text = whole
        return self._next(final=True)

    def _next(self, *, final: bool) -> str:
        if self.stopped:
            return ""
        found = [at for stop in self._stop if (at := self._text.find(stop, self._given)) >= 0]
        certain = len(self._text) - (0 if final else self._kept())
        if found and min(found) <= certain:  # otherwise another stop text may have begun before this one
            self.stopped = True
            return self._give(min(found))
        return self._give(certain)

    def _give(self, end: int) -> str:
        piece, self._given = self._text[self._given : end], end
        return piece

    def _kept(self) -> int:
        """How many characters at the end may be the beginning of a stop text."""
        rest = self._text[self._given :]
        sizes = (size for stop in self._stop for size in range(1, len(stop)) if rest.endswith(stop[:size]))
        return max(sizes, default=0)


def conversation(body: Any) -> list[dict[str, str]]:
    """The messages in a JSON text, each with its `role`, its `content`, and optionally a `name`.

    Raises:
        BadRequest: the text has no such messages, or too many.
    """
    text = text_in(body, "the conversation")
    try:
        messages = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise BadRequest(f"the conversation is not JSON: {str(error)[:100]}") from None
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise BadRequest(f"a conversation is a list of 1 to {MAX_MESSAGES} messages")
    for number, message in enumerate(messages, 1):
        _check_message(number, message)
    return messages


def _check_message(number: int, message: Any) -> None:
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys() <= {"role", "content", "name"}:
        raise BadRequest(f"message {number} must have a role and a content, and may have a name, and nothing else")
    for key, text in message.items():
        if not isinstance(text, str):
            raise BadRequest(f"message {number}: its {key} must be a text")


def text_in(item: Any, what: str) -> str:
    """A text that a client sent.

    Raises:
        BadRequest: it is not UTF-8, or too large.
    """
    body = item if isinstance(item, bytes) else str(item).encode(errors="surrogatepass")
    if len(body) > MAX_PROMPT_BYTES:
        raise BadRequest(f"{what} has {len(body)} bytes, the limit is {MAX_PROMPT_BYTES}")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{what} is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}") from None


def _check_sampling(ask: Ask) -> None:
    if not (math.isfinite(ask.temperature) and 0 <= ask.temperature <= MAX_TEMPERATURE):
        raise BadRequest(f"temperature is {ask.temperature:g}, it must be from 0 to {MAX_TEMPERATURE:g}")
    if not 0 < ask.top_p <= 1:
        raise BadRequest(f"top_p is {ask.top_p:g}, it must be more than 0 and at most 1")
    if ask.seed < 0:
        raise BadRequest(f"seed is {ask.seed}, it must not be negative")


def _check_stops(stop: Sequence[str]) -> None:
    if len(stop) > MAX_STOPS:
        raise BadRequest(f"there are {len(stop)} stop texts, the limit is {MAX_STOPS}")
    for text in stop:
        if not 0 < len(text) <= MAX_STOP_CHARACTERS:
            raise BadRequest(f"a stop text has {len(text)} characters, it must have 1 to {MAX_STOP_CHARACTERS}")
