"""Drift on a real stack: production's own requests are steady, others drift, and a hook is told of it once."""

import pytest

from shiplift.pipelines.engines.local.drifting import state_of
from shiplift.pipelines.engines.local.site_file import FILE
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.records.drift import DriftReport
from tests.integration.conftest import ONE_FORM, Lab, digits, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SPEC = f"""{ONE_FORM}
capture: {{share: 1}}
drift: {{every: 10s, window: 1h, threshold: 0.5, min_requests: 80, hook: retrain}}
"""


def test_production_is_compared_with_the_validation_data(lab: Lab) -> None:
    model, images = "drifting", digits()[0]
    site = lab.home / FILE
    site.write_text("events: {targets: [{name: retrain, url: 'http://127.0.0.1:9/hook', hook: true}]}\n")
    try:
        assert lab.wait(model, lab.log_classifier(model, spec=SPEC)).exit_code == 0
        early = lab.engine.data_drift(model, now=True)
        assert (early.drifted, early.compared, early.problem) == ((), 0, "")
        _ask(lab, model, 1200, 1320)
        steady = until(lambda: _compared(lab, model, 120))
        assert (steady.drifted, steady.reference_rows) == ((), 597)
        columns = {each.column.partition("[")[0]: each for each in steady.columns}
        assert {name: each.state for name, each in columns.items()} == dict.fromkeys(columns, "steady")
        assert {name.partition("/")[0] for name in columns} == {"input", "output"}
        for at in range(1200, 1400):
            lab.ask(model, {"input": 1 - images[at : at + 1]})
        assert lab.engine.data_drift(model, now=True).requests >= 120
        until(lambda: state_of(lab.home, model))
        until(lambda: lab.engine.data_drift(model, now=False).drifted, seconds=180)
        (event,) = until(
            lambda: [each for _, each in Outbox(lab.home).events(model=model) if each.kind is EventKind.DRIFTED]
        )
        assert (event.hook, event.version) == ("retrain", 1)
        shown = lab.engine.status(model)
        assert "columns drifted from the validation data" in getattr(shown, "data_drift", "")
        captured = SPEC.replace("load: {", "load: {requests: captured, ")
        report = lab.wait(model, lab.log_classifier(model, samples=1000, spec=captured))
        assert report.exit_code == 0, report.message
    finally:
        site.unlink()


def _ask(lab: Lab, model: str, first: int, last: int) -> None:
    images = digits()[0]
    for at in range(first, last):
        lab.ask(model, {"input": images[at : at + 1]})


def _compared(lab: Lab, model: str, requests: int) -> DriftReport | None:
    report = lab.engine.data_drift(model, now=True)
    assert report.problem == ""
    return report if report.requests >= requests else None
