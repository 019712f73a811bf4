"""Versions that are replaced under the same name and number: deleted and created again, or overwritten in place."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shiplift.runtime.base.errors import VersionReplaced
from shiplift.runtime.records.request import Request
from shiplift.runtime.serving.reinstate import reinstate
from shiplift.runtime.store.registry.terms import CHAMPION, VersionInfo
from shiplift.steps.admit import admit
from tests.integration.conftest import Lab, digits, until

MODEL = "reborn"
SAMPLES = 60  # so few that the model differs from the other one on many rows


def served_labels(lab: Lab, rows: NDArray[Any]) -> list[int]:
    return [row[0] for row in lab.ask(MODEL, {"input": rows})["outputs"]["label"]]


def stored_files(lab: Lab, info: VersionInfo) -> Path:
    """The folder in which MLflow keeps a version's files."""
    path = lab.registry._kept_at(info).removeprefix("mlflow-artifacts:/").strip("/")
    (folder,) = {file.parent for file in (lab.home / "mlflow").rglob("MLmodel") if str(file.parent).endswith(path)}
    return folder


@pytest.mark.slow
def test_a_version_that_was_replaced_is_released_anew_under_its_old_number(lab: Lab) -> None:
    images, _ = digits()
    first, second = lab.classifier(), lab.classifier(SAMPLES)
    rows = images[np.flatnonzero(first.predict(images) != second.predict(images))[:8]]
    assert lab.wait(MODEL, lab.log_classifier(MODEL)).alias == CHAMPION
    before = lab.registry.version(MODEL, 1)
    files = stored_files(lab, before)
    assert served_labels(lab, rows) == first.predict(rows).tolist()

    lab.mlflow.MlflowClient().delete_registered_model(MODEL)
    old = set(lab.releases.of(MODEL, 1))
    assert lab.log_classifier(MODEL, samples=SAMPLES) == 1
    assert reinstate(lab.site, MODEL).moved == ()
    (new,) = until(lambda: set(lab.releases.of(MODEL, 1)) - old)
    until(lambda: not lab.releases.active(new), seconds=180)
    report = lab.engine.result(new)
    assert (report.exit_code, report.alias, lab.registry.alias(MODEL, CHAMPION)) == (0, CHAMPION, 1)
    assert served_labels(lab, rows) == second.predict(rows).tolist()
    with pytest.raises(VersionReplaced, match="was deleted, and another one has its number"):
        admit(lab.site, Request(model=MODEL, version=1, registered_at=before.created_at))

    shutil.copytree(files, stored_files(lab, lab.registry.version(MODEL, 1)), dirs_exist_ok=True)
    lab.registry.move_alias(MODEL, CHAMPION, 0)
    reinstate(lab.site, MODEL)
    assert lab.registry.alias(MODEL, CHAMPION) == 0
    report = lab.order(MODEL, 1, again=True)
    assert (report.exit_code, report.alias, lab.registry.alias(MODEL, CHAMPION)) == (0, CHAMPION, 1)
    assert served_labels(lab, rows) == first.predict(rows).tolist()
