from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.records.calibration import GraphKind
from shiplift.runtime.search.calibration import graphs
from shiplift.runtime.search.calibration.cases import CalibrationForm
from shiplift.runtime.search.calibration.probing import candidate
from shiplift.runtime.spec.target import Target


@pytest.mark.parametrize("kind", ["small", "dense", "trees"])
def test_a_graph_answers_each_sample(kind: GraphKind, tmp_path: Path) -> None:
    run = candidate(CalibrationForm(graph=kind, engine="onnxruntime", precision="fp32"), Target(), tmp_path)
    (answer,) = run.session().run(list(run.outputs), graphs.samples(kind, 3))
    assert len(answer) == 3
    assert np.isfinite(answer).all()
    assert len(np.unique(answer)) > 1


def test_the_trees_are_the_same_on_both_engines(tmp_path: Path) -> None:
    pytest.importorskip("treelite")
    rows = graphs.samples("trees", 50)
    answers = [
        candidate(form, Target(), tmp_path).session().run(list(graphs.OUTPUTS), rows)[0]
        for form in (
            CalibrationForm(graph="trees", engine="onnxruntime", precision="fp32"),
            CalibrationForm(graph="trees", engine="trees", precision="fp32"),
        )
    ]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4, atol=1e-4)
