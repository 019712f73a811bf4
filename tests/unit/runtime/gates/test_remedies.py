"""Whatever a gate refuses, it says what to do next, and that can be done."""

import re
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from shiplift.pipelines.commands.app import COMMANDS
from shiplift.runtime.gates.policy import KINDS
from shiplift.runtime.gates.remedies import REMEDIES, CheckKind, remedy
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.rules import METRICS

UNDECIDED = (Outcome.FAIL, Outcome.INCONCLUSIVE)


def test_every_kind_of_check_has_advice() -> None:
    assert set(REMEDIES) == set(CheckKind)
    assert all(remedy(kind, outcome).endswith(".") for kind in CheckKind for outcome in UNDECIDED)
    assert not any(remedy(kind, Outcome.PASS) for kind in CheckKind)


def test_every_metric_of_a_rule_is_of_a_kind() -> None:
    assert set(KINDS) == set(METRICS)


def fields(model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a section by the names that a spec uses."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def in_spec(path: str) -> bool:
    """Whether a dotted path leads to a field of the release spec."""
    at: list[Any] = [ReleaseSpec]
    for name in path.split("."):
        sections = [each for each in at if isinstance(each, type) and issubclass(each, BaseModel)]
        found = [fields(section)[name] for section in sections if name in fields(section)]
        if not found:
            return False
        at = [each for annotation in found for each in (annotation, *get_args(annotation))]
    return True


@pytest.mark.parametrize("kind", CheckKind)
@pytest.mark.parametrize("outcome", UNDECIDED)
def test_advice_names_commands_and_fields_that_there_are(kind: CheckKind, outcome: Outcome) -> None:
    words = re.findall(r"`([^`]+)`", remedy(kind, outcome))
    assert words
    for word in words:
        if word.startswith("shiplift "):
            assert word.split()[1] in COMMANDS
        else:
            assert in_spec(word) or word in ("limit", "precisions"), word


def test_a_field_that_a_spec_has_not_is_found_out() -> None:
    assert in_spec("promotion.shadow.for")
    assert not in_spec("slo.p98_ms")
