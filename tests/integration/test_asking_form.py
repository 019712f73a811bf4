"""Rows of a package are asked again, of the author's model as MLflow loads it and of the package on a real server."""

from pathlib import Path

import mlflow.sklearn
import numpy as np
import pytest
from mlflow.models import infer_signature
from sklearn.linear_model import LinearRegression

from shiplift.runtime.base.errors import NotFound, UsageError
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.site import Site
from shiplift.runtime.search.repeating import ask
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.integration.test_benches import site
from tests.integration.test_served_proof import ROWS, questions
from tests.packages import SIGNATURE, multiplying
from tests.unit.examples import admitted as admission
from tests.unit.examples import artifact, exported

__all__ = ["site"]
pytestmark = pytest.mark.slow


def admitted(store: ArtifactStore, folder: Path) -> Admitted:
    """A version that doubles its four columns, as its author logged it."""
    double = LinearRegression(fit_intercept=False).fit(np.eye(4), 2 * np.eye(4))
    mlflow.sklearn.save_model(double, folder, signature=infer_signature(ROWS, 2 * ROWS), pip_requirements=[])
    files = store.put_tree(folder)
    version = ModelVersion(name="double", version=1, digest=files.sha256, flavor="sklearn", files=files)
    contract = DeclaredGraph(signature=SIGNATURE, example=artifact())
    return admission().model_copy(update={"model_version": version, "contract": contract})


def test_the_original_and_the_form_are_asked_alone_and_among_others(site: Site, tmp_path: Path) -> None:
    store = ArtifactStore(site.artifacts_uri)
    asked, given = questions(store, 2), admitted(store, tmp_path / "logged")
    right = multiplying(store, tmp_path / "made", "right", factor=2, questions=asked)
    other = multiplying(store, tmp_path / "made", "other", factor=3, questions=asked)
    mixing = multiplying(store, tmp_path / "made", "mixing", factor=2, mixing=True, questions=asked)
    for package, rows, clients, differs in (
        (right, (5, 7), 1, ""),
        (right, (5, 7), 8, ""),
        (other, (5,), 1, "(alone) the original answers"),
        (mixing, (5,), 1, ""),
        (mixing, (5, 7), 1, "(among others) the original answers"),
    ):
        again = ask(site, given, exported(signature=SIGNATURE), package, rows, clients)
        assert again.judge == "mlflow.pyfunc"
        assert again.same is not bool(differs)
        for row in again.rows:
            assert row.original.startswith('{"output": ['), row
            assert row.original[:16] == row.recorded[:16]
            assert differs in row.difference
            assert bool(row.among) is (len(rows) > 1 or clients > 1)
    with pytest.raises(UsageError, match="no row 300"):
        ask(site, given, exported(signature=SIGNATURE), right, (300,), 1)
    bare = right.model_copy(update={"questions": None})
    with pytest.raises(NotFound, match="no rows were kept"):
        ask(site, given, exported(signature=SIGNATURE), bare, (0,), 1)
