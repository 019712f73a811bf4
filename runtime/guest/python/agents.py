"""Requests to MLflow's chat models and agents, and their answers: each is one JSON object, and travels as its text.

Answers hold times and ids that are new each time, so nobody could compare them. A request that begins with `STEADY` is
answered without them: the proof's questions and golden requests do, clients' requests don't.

Process: the model's own process, as `python_host/agents.py` beside `values.py`; Shiplift's sandbox.
Python: the model's
Packages: numpy
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from .values import text_of, texts  # noqa: TID251 - the same import in Shiplift and in a package

TASKS = ("agent/v1/chat", "agent/v2/chat", "agent/v1/responses")  # in the metadata that MLflow logs
_LOADERS = tuple(f"mlflow.pyfunc.loaders.{kind}" for kind in ("chat_model", "chat_agent", "responses_agent"))
REQUEST, RESPONSE = "request", "response"
STEADY = "\ufdd1"  # Unicode reserves this character for programs: no JSON begins with it
_NEW_EACH_TIME = ("id", "item_id", "call_id", "tool_call_id", "response_id", "created", "created_at")
_THE_AUTHOR_S = ("custom_inputs", "custom_outputs", "metadata")  # what is in there means what its author wants


def is_agent(metadata: Any, flavors: Any, inputs: list[str]) -> bool:
    """Whether a model with this metadata, these flavors and these inputs is a chat model or an agent.

    An author's own metadata may have taken the place of the task, and a model from code is loaded by a common loader.
    """
    known = _entry(metadata, "task") in TASKS or _entry(_entry(flavors, "python_function"), "loader_module") in _LOADERS
    return known and ("messages" in inputs or "input" in inputs)


def _entry(fields: Any, name: str) -> Any:
    return fields.get(name) if isinstance(fields, Mapping) else None


def steady(request: Any) -> str:
    """A request, decoded, as the text whose answer can be compared."""
    return STEADY + json.dumps(request)


def answered(ask: Callable[[dict[str, Any]], Any], requests: Any) -> dict[str, Any]:
    """The answer to the only request in an array of texts, as `RESPONSE`, (1,).

    Raises:
        ValueError, TypeError: there are several, or it is not a JSON object.
    """
    given = requests.reshape(-1).tolist()
    if len(given) != 1:
        raise ValueError(f"a chat model or agent answers one request at a time, not {len(given)}")
    text = given[0].lstrip()
    request = json.loads(text.removeprefix(STEADY))
    if not isinstance(request, dict):
        raise TypeError("the request is not a JSON object")
    answer = json.loads(text_of(ask(request)))
    return {RESPONSE: texts([json.dumps(_without_new(answer) if text.startswith(STEADY) else answer)])}


def _without_new(value: Any) -> Any:
    """The same with zeros and empty texts for times and ids."""
    if isinstance(value, list):
        return [_without_new(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _blank(item) if name in _NEW_EACH_TIME else item if name in _THE_AUTHOR_S else _without_new(item)
        for name, item in value.items()
    }


def _blank(value: Any) -> Any:
    return type(value)() if isinstance(value, str | int | float) else value
