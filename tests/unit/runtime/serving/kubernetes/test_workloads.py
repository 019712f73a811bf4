"""The check of new pods: a Service that leads nowhere yet is asked again, a wrong answer is final."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from shiplift.runtime.base.errors import GoldenMismatch, ShipliftError, Temporary
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.serving.kubernetes import workloads
from shiplift.runtime.serving.kubernetes.objects.deployment import deployment
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


def test_pods_whose_requests_production_captures_are_left_to_the_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = cluster().model_copy(update={"capture_uri": "http://capture.shiplift.svc:8009"})
    own = package(capturing=Capturing(share=0.1, limit_bytes=1, retention_s=1))
    bodies = {
        serves: deployment(place, own, "s3://x", name="d-2", replicas=1, extra={}, serves=serves)
        for serves in (False, True)
    }
    for serves, kinds in ((True, []), (False, ["Deployment", "Service"])):
        found = Workloads(site(tmp_path), place)
        api = mock.Mock(get=lambda kind, _, serves=serves: bodies[serves] if kind.name == "Deployment" else None)
        monkeypatch.setattr(found, "api", api)
        monkeypatch.setattr(found, "_wait", lambda *_: None)
        assert found.run(package(), name="d-2") == "d-2"
        assert [call.args[0]["kind"] for call in api.apply.call_args_list] == kinds
