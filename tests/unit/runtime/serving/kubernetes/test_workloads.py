"""The check of new pods: a Service that leads nowhere yet is asked again, a wrong answer is final."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import GoldenMismatch, ShipliftError, Temporary
from shiplift.runtime.serving.kubernetes import workloads
from shiplift.runtime.serving.kubernetes.workloads import Workloads
from tests.unit.examples import package, site
from tests.unit.runtime.serving.operator.world import cluster

REFUSED = Temporary("connection refused", do="Wait.")
WRONG = GoldenMismatch("it is off", do="Rerun.")


def check(monkeypatch: pytest.MonkeyPatch, folder: Path, answers: list[ShipliftError | None]) -> int:
    """Checks a package that answers like this; returns how often it was asked."""
    left: Iterator[ShipliftError | None] = iter(answers)
    asked = 0

    def answer(*_: object) -> None:
        nonlocal asked
        asked += 1
        if error := next(left, REFUSED):
            raise error

    monkeypatch.setattr(workloads, "check_package", answer)
    monkeypatch.setattr(workloads._with_retries, "wait", lambda _: 0)
    try:
        Workloads(site(folder), cluster()).check(package(), "digits-1", {})
    finally:
        left = iter(())
    return asked


def test_a_refused_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check(monkeypatch, tmp_path, [REFUSED, REFUSED, None]) == 3


def test_a_wrong_answer_is_final(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(GoldenMismatch):
        check(monkeypatch, tmp_path, [REFUSED, WRONG, None])


def test_a_service_that_leads_nowhere_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workloads._with_retries, "stop", lambda state: state.attempt_number >= 3)
    with pytest.raises(Temporary, match="connection refused"):
        check(monkeypatch, tmp_path, [])
