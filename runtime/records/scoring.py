"""What MLflow's clients know of a model: its logged signature, and in which form `predict` of pyfunc answers."""

import operator
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from shiplift.runtime.records.base import Record


def _of_defaults(use: str) -> bool:
    """Whether older clients, which don't know the field, do the same."""
    return use == "defaults"


class AnswerPart(Record):
    """A part of pyfunc's answer: its `name` there (empty in an array), and the served tensor with its values.

    `rank` counts the axes of pyfunc's array, rows included; a served tensor has at least two. `column` is the tensor's
    only column that belongs to the part; -1: all. `holds` says what the tensor's values are: `json` texts, `booleans`
    as 1 and 0 where some are missing, `bytes` in base64, or (empty) what they look like. `axis` says what becomes of
    the axis of rows in pyfunc's answer, which the tensor always has: a `whole` part never has it, and is about all rows
    of the request; a `squeezed` one has it if there are several rows.
    """

    name: str = Field("", max_length=1024)
    tensor: str = Field(max_length=1024)
    rank: int = Field(ge=1, le=32)
    column: int = Field(-1, ge=-1)
    holds: Literal["", "json", "booleans", "bytes"] = Field("", exclude_if=operator.not_)
    axis: Literal["", "squeezed", "whole"] = Field("", exclude_if=operator.not_)


# What becomes of a request's parameters: `defaults` (others than the logged ones are refused), `ignored` as by pyfunc
# of that flavor, or `passed` to the author's own code.
ParamsUse = Literal["defaults", "ignored", "passed"]


class AnswerForm(Record):
    """The form of pyfunc's answer: an `array`, `records` (data frames, series), a `mapping` by name, or a `list`.

    An array may be a list of its rows; a `list` has an array for each output, and each of these all rows.
    """

    kind: Literal["array", "records", "mapping", "list"]
    parts: tuple[AnswerPart, ...] = Field(min_length=1, max_length=20_000)

    @classmethod
    def told(cls, form: Any) -> Self | None:
        """The form as a sandbox told it, where its author's code ran; None if it makes no sense."""
        try:
            return cls.model_validate(form)
        except ValidationError:
            return None


class Scoring(Record):
    """How MLflow's scoring protocol speaks of a model. Without `answer`, its form follows from the outputs.

    `inputs`, `outputs` and `params` are the schemas of the logged signature, in MLflow's JSON; empty: none. `hinted`:
    they were made from the type hints of `predict`. `params_use` says what becomes of a request's parameters. `agent`:
    it is a chat model or an agent, so a request is a JSON object, and so is the answer (`guest/python/agents.py`).
    """

    inputs: str
    outputs: str = ""
    params: str = ""
    hinted: bool = False
    params_use: ParamsUse = Field(default="defaults", exclude_if=_of_defaults)
    agent: bool = Field(default=False, exclude_if=operator.not_)
    answer: AnswerForm | None = None


def answered_as(scoring: Scoring | None, form: Any) -> Scoring | None:
    """The same with the form of the answer, as a sandbox told it."""
    return scoring.model_copy(update={"answer": AnswerForm.told(form)}) if scoring else None


def passing_params(scoring: Scoring | None) -> Scoring | None:
    """The same of a model that the author's own code answers, which gets each request's parameters."""
    return scoring.model_copy(update={"params_use": "passed"}) if scoring else None


def absent(scoring: Scoring | None) -> bool:
    """Whether there is none: a record leaves it out then, because older clients don't know the field."""
    return scoring is None
