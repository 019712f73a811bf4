"""A kind of model of our own, added as a folder and a line: its release runs from the registry to production."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from shiplift.pipelines.engines.local import runner
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.families import table
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.store.ledger import Ledger
from tests.integration.conftest import FAST, Lab, by_hand, request
from tests.toy.family import ToyFamily, ToyPackage


def doubling() -> object:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("toy", "double")]
    graph = helper.make_graph([helper.make_node("Add", ["toy", "toy"], ["double"])], "double", ends[:1], ends[1:])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.slow
def test_a_release_of_a_new_kind_runs_end_to_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.models import infer_signature

    example = np.arange(8, dtype=np.float32).reshape(2, 4)

    def log_model(**options: object) -> object:
        signature = infer_signature({"toy": example}, {"double": 2 * example})
        example_given = {"toy": example}
        return lab.mlflow.onnx.log_model(doubling(), signature=signature, input_example=example_given, **options)

    with lab.unannounced():  # the stack knows no toys: it would release a graph
        version = lab.log("toy", log_model)
    monkeypatch.setattr(table, "FAMILIES", [ToyFamily(), *table.FAMILIES])
    asked = request("toy", version, f"{FAST}\n# as a toy\n")
    ledger = Ledger(lab.site, asked)
    ending, known = runner.run(
        RELEASE, lab.site, asked, by_hand(), release="toy-as-a-toy", cache=ledger, scratch=Path(lab.site.home)
    )
    report = known[ReleaseReport.parameter()]
    assert ending.failure is None
    assert report.exit_code == 0, report.reason
    assert "under the motto play" in Path(report.report).read_text()
    assert isinstance(known[Promotion.parameter()].package, ToyPackage)
    promotion = ledger.promotion()
    assert promotion is not None
    assert isinstance(promotion.package, ToyPackage)
    outputs = lab.ask("toy", {"toy": example})["outputs"]["double"]
    np.testing.assert_array_equal(np.array(outputs), 2 * example)
