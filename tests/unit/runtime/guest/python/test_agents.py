"""Requests to chat models and agents, and answers without what is new each time."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.guest.python.agents import RESPONSE, STEADY, answered, is_agent, steady

COUNT = itertools.count()


def agent(request: dict[str, Any]) -> dict[str, Any]:
    """Answers with new ids and times, as every agent does."""
    new = next(COUNT)
    return {
        "id": f"resp_{new}",
        "created_at": float(new),
        "created": new,
        "output": [{"id": f"msg_{new}", "call_id": f"call_{new}", "text": request["input"]}],
        "custom_outputs": {"id": "the author's"},
        "error": None,
    }


def asked(text: str) -> Any:
    return json.loads(answered(agent, np.array([[text]], object))[RESPONSE].item())


def test_clients_get_times_and_ids_and_the_proof_does_not() -> None:
    one, other = (asked('{"input": "hé"}') for _ in range(2))
    assert one["id"] != other["id"]
    assert one["output"][0]["text"] == "hé"
    one, other = asked(steady({"input": "hé"})), asked(f"  {steady({'input': 'hé'})}\n")
    assert one == other
    assert one["custom_outputs"] == {"id": "the author's"}
    assert one["output"] == [{"id": "", "call_id": "", "text": "hé"}]


def test_what_is_no_single_request_is_an_error() -> None:
    for wrong in ("", "{", "[1]", "7", STEADY, "\ufdd0"):
        with pytest.raises((ValueError, TypeError)):
            asked(wrong)
    with pytest.raises(ValueError, match="one request at a time"):
        answered(agent, np.array(["{}", "{}"], object))


def loaded_by(module: str) -> Any:
    return {"python_function": {"loader_module": f"mlflow.pyfunc.loaders.{module}"}}


def test_a_task_or_a_loader_of_mlflow_s_with_its_inputs_makes_an_agent() -> None:
    code = loaded_by("code_model")
    assert is_agent({"task": "agent/v1/chat"}, code, ["messages", "n"])
    assert is_agent({"task": "agent/v1/responses"}, code, ["input"])
    assert is_agent({"team": "support"}, loaded_by("responses_agent"), ["input"])  # the author's own metadata
    assert not is_agent({"task": "agent/v1/chat"}, code, ["x"])
    assert not is_agent({"task": "llm/v1/chat"}, code, ["messages"])
    assert not is_agent(None, code, [])
    assert not is_agent(None, None, ["messages"])
