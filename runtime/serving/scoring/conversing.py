"""Requests to MLflow's chat models and agents, and their answers, as MLflow's scoring server reads and writes them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shiplift.runtime.guest.python.agents import REQUEST, RESPONSE
from shiplift.runtime.model.tensors import Arrays, text_of
from shiplift.runtime.serving.scoring.common_forms import FORMS, is_unwrapped
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.requests import JSON, decoded, require_shallow

WANTED = (RESPONSE,)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A request: its tensor, and whether it came in one of the forms whose answers have the key `predictions`."""

    inputs: Arrays
    wrapped: bool

    def body(self, outputs: Arrays) -> bytes:
        """The body of the answer."""
        text = text_of(outputs[RESPONSE].reshape(-1).tolist()[0], errors="replace")
        return f'{{"predictions": {text}}}'.encode() if self.wrapped else text.encode()


def read_conversation(kind: str, body: bytes) -> Conversation:
    """What a body of that media type asks a chat model or an agent.

    Raises:
        ScoringProblem: it is not one request in JSON.
    """
    if kind != JSON:
        raise ScoringProblem(400, f"a chat model or an agent takes {JSON} alone: send its request as the body")
    value = decoded(body)
    require_shallow(value)
    unwrapped = is_unwrapped(value)
    request = value if unwrapped else _wrapped(value)
    return Conversation(inputs={REQUEST: np.array([[json.dumps(request)]], object)}, wrapped=not unwrapped)


def _wrapped(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request in one of MLflow's forms of data."""
    found = [name for name in FORMS if name in body]
    if len(found) != 1:
        raise ScoringProblem(
            400, "Invalid input. It has no `messages` or `input`, and not exactly one of the fields " + ", ".join(FORMS)
        )
    data = body[found[0]]
    if found[0] == "dataframe_split" and isinstance(data, dict) and isinstance(data.get("data"), list):
        data = [dict(zip(data.get("columns") or (), row, strict=False)) for row in data["data"]]
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    if isinstance(data, dict):
        return data
    raise ScoringProblem(
        400, f"Invalid input. {found[0]!r} has to hold one request: a chat model or an agent answers one at a time"
    )
