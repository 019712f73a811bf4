"""Exact trees among the candidates: scored as all others, and kept without labels, since they have nothing to lose."""

from pathlib import Path

import numpy as np
import treelite
from sklearn.ensemble import ExtraTreesRegressor

from shiplift.runtime.precision.evaluation import Validation
from shiplift.runtime.precision.selection import judged
from shiplift.runtime.precision.timing import measure
from shiplift.runtime.precision.trees_rung import Trees, scored
from shiplift.runtime.records.precision import AS_EXPORTED, Built
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.spec.model import Quantization
from shiplift.runtime.spec.target import Target
from tests.unit.examples import tensor

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
SIGNATURE = Signature(inputs=(tensor("x", -1, 3),), outputs=(tensor("variable", -1, 1),))


def test_exact_trees_are_scored_timed_and_kept_without_labels(tmp_path: Path) -> None:
    forest = ExtraTreesRegressor(3, random_state=0).fit(X, X.sum(axis=1))
    treelite.sklearn.import_model(forest).serialize(tmp_path / "checkpoint.tl")
    trees = Trees(file=tmp_path / "checkpoint.tl", form=TreesForm(answers={"variable": "scores"}))
    reference = {"variable": forest.predict(X)[:, None].astype(np.float32)}
    candidate, run = scored(trees, SIGNATURE, "trees", Validation(metric=None, asked={"x": X}, reference=reference))
    assert (candidate.engine, candidate.relative_error, candidate.folder) == ("trees", 0, "trees")
    assert run is not None
    measured = measure({0: run}, {"x": X[:8]})[0]
    assert measured["latency_ms"] > 0
    top = Built(precision="fp32", folder=AS_EXPORTED, latency_ms=0.001)
    kept = [each.engine for each in judged((top, candidate), Target(), None, Quantization()) if not each.dropped]
    assert sorted(kept) == ["onnxruntime", "trees"]
    alone = judged((top, candidate), Target(engine="trees"), None, Quantization())
    assert [each.engine for each in alone if not each.dropped] == ["trees"]
