"""Requests to chat models and agents in every form, and their answers."""

import json
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.guest.python.agents import REQUEST, RESPONSE
from shiplift.runtime.serving.scoring.conversing import read_conversation
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.requests import CSV, JSON

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hé"}], "temperature": 0.5}
ANSWER = {RESPONSE: np.array([[b'{"choices": []}']], object)}


def test_a_request_may_be_the_body_or_in_a_form_whose_answer_has_a_key() -> None:
    split = {"columns": list(CHAT), "data": [list(CHAT.values())]}
    forms = [{"inputs": CHAT}, {"dataframe_records": [CHAT]}, {"instances": [CHAT]}, {"dataframe_split": split}]
    for body, answer in [(CHAT, {"choices": []}), *((form, {"predictions": {"choices": []}}) for form in forms)]:
        conversation = read_conversation(JSON, json.dumps(body).encode())
        assert json.loads(conversation.inputs[REQUEST].item()) == CHAT
        assert json.loads(conversation.body(ANSWER)) == answer


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (CSV, "a\n1", "application/json alone"),
        (JSON, "{", "valid JSON"),
        (JSON, "[1]", "Received a list"),
        (JSON, '{"text": "hello"}', "no `messages` or `input`"),
        (JSON, json.dumps({"instances": [CHAT, CHAT]}), "one at a time"),
        (JSON, '{"inputs": "hello"}', "one request"),
        (JSON, f'{{"messages": {"[" * 200}{"]" * 200}}}', "levels deep"),
    ],
)
def test_what_is_no_request_is_refused_with_a_reason(kind: str, body: str, said: str) -> None:
    with pytest.raises(ScoringProblem, match=said) as refused:
        read_conversation(kind, body.encode())
    assert refused.value.status == 400
