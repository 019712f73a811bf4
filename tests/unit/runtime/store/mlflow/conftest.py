"""Tests of a connection to MLflow start without this machine's settings."""

import os

import fsspec
import pytest


@pytest.fixture
def clean_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No MLFLOW_ variables but a short pause, and no filesystem that another test configured."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_TRACKING_", "MLFLOW_HTTP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0.001")
    fsspec.get_filesystem_class("mlflow-artifacts").clear_instance_cache()
