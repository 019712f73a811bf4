"""Whether a chat template can be served: it must give the same tokens for conversations as `transformers` does.

The conversations are typical for clients: with and without instructions, one question or several, with lines, white
space and special characters. Many templates refuse some (no system role, roles out of turn): then both must refuse
them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiplift.runtime.guest.generation.chat import Renderer
from shiplift.runtime.guest.generation.front import BadRequest, GenerationFront

CHATS = "chats.json"
Messages = list[dict[str, str]]
_CONVERSATIONS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "Hi"),),
    (("system", "Be brief."), ("user", "What floats?")),
    (("user", "Name a ship."), ("assistant", "Vasa."), ("user", "Another one?")),
    (("system", " Be\nkind. "), ("user", " two\n\nlines\t"), ("assistant", " yes "), ("user", "{{ a }} <b>&'\" é漢🚢")),
    (("user", ""),),
    (("assistant", "Hello."), ("user", "Hi")),
    (("user", "a"), ("user", "b")),
    (("tool", "x"),),
)


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation as a client sends it, and its prompt."""

    body: str
    prompt: str

    @property
    def fields(self) -> dict[str, Any]:
        """The request that `GenerationFront` reads."""
        return {"prompt": self.prompt, "rendered": True}


@dataclass(frozen=True, kw_only=True)
class ChatCheck:
    """Whether conversations can be served: if not, the reason; if so, the first one that the model can take."""

    same: bool
    problem: str = ""
    golden: Chat | None = None


def conversations() -> list[Messages]:
    """The conversations that are compared."""
    return [[{"role": role, "content": text} for role, text in each] for each in _CONVERSATIONS]


def write(tokenizer: Any, to: Path) -> list[dict[str, Any]]:
    """Writes the chat template, if there is one; returns conversations with the results of `transformers`.

    Those are the `messages`, and the `ids` of their tokens, or none if the template refuses them.
    """
    try:
        template = tokenizer.get_chat_template()
    except (AttributeError, ValueError):  # there is no template, or there are several but none for chats
        return []
    tokens = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    to.write_text(json.dumps({"template": template, "tokens": tokens}))
    return [{"messages": messages, "ids": _ids(tokenizer, messages)} for messages in conversations()]


def _ids(tokenizer: Any, messages: Messages) -> list[int] | None:
    try:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
        return [int(token) for token in ids["input_ids"]]
    except Exception:
        return None


def compared(path: Path, front: GenerationFront, chats: Sequence[Mapping[str, Any]]) -> ChatCheck:
    """Compares the template at `path` with the results of `transformers` for conversations."""
    if not path.exists():
        return ChatCheck(same=False, problem="it has no chat template")
    golden = None
    try:
        renderer = Renderer(path)
    except Exception as error:
        return ChatCheck(same=False, problem=f"its chat template can't be read: {_told(error)}")
    for number, chat in enumerate(chats, 1):
        prompt, why = _prompt(renderer, chat["messages"])
        ids = None if prompt is None else front.tokenizer.encode(prompt, add_special_tokens=False).ids
        if ids != chat["ids"]:
            told = f" ({why})" if why else ""
            return ChatCheck(same=False, problem=f"conversation {number} gives other tokens than transformers{told}")
        if golden is None and prompt and _fits(front, prompt):
            golden = Chat(body=json.dumps(chat["messages"]), prompt=prompt)
    if golden is None:
        return ChatCheck(same=False, problem="its chat template refuses every conversation that was tried")
    return ChatCheck(same=True, golden=golden)


def _prompt(renderer: Renderer, messages: Messages) -> tuple[str | None, str]:
    try:
        return renderer.prompt(messages), ""
    except Exception as error:
        return None, _told(error)


def _fits(front: GenerationFront, prompt: str) -> bool:
    try:
        front.read({"prompt": prompt, "rendered": True})
    except BadRequest:
        return False
    return True


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
