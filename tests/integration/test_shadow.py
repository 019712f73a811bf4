"""A challenger that shadows the champion, on a real stack: copies of clients' requests, gates, and nothing left on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shiplift.runtime.serving.production import production
from shiplift.runtime.store.registry.terms import TAG
from tests.integration.conftest import ONE_FORM, Lab, digits

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SHADOW = "promotion: {{shadow: {{share: 1, for: {seconds}s, min_requests: 20, {more}}}}}\n"


def spec(more: str, seconds: int = 6) -> str:
    return ONE_FORM + SHADOW.format(seconds=seconds, more=more)


@contextmanager
def traffic(lab: Lab, model: str) -> Iterator[list[Any]]:
    """Clients' requests for as long as the context lasts; what they got."""
    stop, seen, image = threading.Event(), [], {"input": digits()[0][:2]}

    def ask() -> None:
        while not stop.wait(0.01):
            seen.append(lab.ask(model, image))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def test_a_challenger_answers_copies_of_real_requests_before_it_gets_traffic(lab: Lab) -> None:
    model = "shadowed"
    first = lab.log_classifier(model, spec=ONE_FORM)
    assert lab.wait(model, first).exit_code == 0
    with traffic(lab, model) as seen:
        second = lab.log_classifier(model, samples=1000, spec=spec("errors_percent: 0"))
        report = lab.wait(model, second)
        assert report.exit_code == 0, report
        checks = {each.name: each for each in report.checks}
        assert (checks["shadow requests"].measured or 0) >= 20
        assert checks["shadow errors"].measured == 0
        assert (checks["shadow p99"].measured or 0) > 0
        agreed = [each for name, each in checks.items() if name.startswith("shadow agreement of ")]
        assert agreed
        assert any((each.measured or 0) < 100 for each in agreed)  # other data, other probabilities
        assert production(lab.site).serving(model) == second

        third = lab.log_classifier(model, samples=1100, spec=spec("agreement_percent: 100"))
        refused = lab.wait(model, third)
        assert refused.exit_code != 0
        assert "rows agree with the champion's" in lab.registry.version(model, third).tags[f"{TAG}reason"]
        assert production(lab.site).serving(model) == second
        assert all(each is not None for each in seen)
