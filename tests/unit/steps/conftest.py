"""The steps' tests run sandbox entries in their own process, unless they ask for `confined`."""

import pytest

from tests.unit.unconfined import unconfined


@pytest.fixture
def confined() -> None:
    """The test runs in the real sandbox."""


@pytest.fixture(autouse=True)
def _workplace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "confined" not in request.fixturenames:
        monkeypatch.setattr("shiplift.runtime.families.graph.candidates.workplace", unconfined)
        monkeypatch.setattr("shiplift.runtime.families.packaging.packages.workplace", unconfined)
