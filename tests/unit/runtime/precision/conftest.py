"""Tests of precisions start no process for each candidate that measures its memory: `steps/test_quantize.py` does."""

import pytest


@pytest.fixture(autouse=True)
def _footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiplift.runtime.precision.timing._footprint", lambda *_: 1.0)
