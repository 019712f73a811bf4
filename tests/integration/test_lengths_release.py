"""Models whose requests have any length: released with buckets that recorded requests teach, or without."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.verdict import Packages
from tests.integration.backends import model
from tests.integration.conftest import FAST, Lab

pytestmark = pytest.mark.slow
SPEC = FAST.replace("time_budget_s: 2", "time_budget_s: 10").replace(
    "load: {", "load: {requests: shiplift/requests.json, "
) + (
    "targets: [{name: local-cpu, engine: onnxruntime, precisions: [fp32]}]\n"
    "serving: {lengths: {pad: {ids: 0, mask: 0}}}\n"
)
LENGTHS = (3, 5, 30, 31, 4, 60, 6, 5)
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(50, 8)).astype(np.float32)


def reader(*, masked: bool) -> Any:
    """The mean of the embeddings of `ids`: of those that `mask` shows, or of all of them."""
    constants = {"table": TABLE, "axis": np.array([1]), "two": np.array([2])}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["vectors"]),
        helper.make_node("Cast", ["mask"], ["floats"], to=1),
        helper.make_node("Unsqueeze", ["floats", "two"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["shown"]),
        helper.make_node("ReduceSum", ["shown", "axis"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["column", "axis"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("ReduceMean", ["shown", "axis"], ["all"], keepdims=0),
        helper.make_node("Identity", ["mean" if masked else "all"], ["y"]),
    ]
    kept = nodes if masked else [node for node in nodes if node.output[0] not in ("sum", "count", "mean")]
    return model(
        kept,
        [("ids", "INT64", ["n", "m"]), ("mask", "INT64", ["n", "m"])],
        [("y", "FP32", ["n", 8])],
        tuple(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()),
    )


def request(length: int) -> dict[str, Any]:
    return {"ids": RNG.integers(1, 50, (1, length)), "mask": np.ones((1, length), np.int64)}


def recorded() -> str:
    bodies = [
        {
            "inputs": [
                {"name": name, "shape": list(array.shape), "datatype": "INT64", "data": array.ravel().tolist()}
                for name, array in request(length).items()
            ]
        }
        for length in LENGTHS * 8
    ]
    return json.dumps(bodies)


def released(lab: Lab, name: str, *, masked: bool) -> Any:
    example = request(64)
    graph = reader(masked=masked)
    texts = {"shiplift/requests.json": recorded()}
    version = lab.log(
        name,
        lambda **options: lab.mlflow.onnx.log_model(graph, input_example=example, **options),
        spec=SPEC,
        texts=texts,
    )
    report = lab.wait(name, version, seconds=240)
    assert report.exit_code == 0, report.reason
    return report


def test_buckets_are_chosen_by_recorded_requests_and_each_gets_its_own_answer(lab: Lab) -> None:
    report = released(lab, "reader-of-lengths", masked=True)
    tuned = lab.engine.history(report).last(Tuned)
    assert tuned is not None
    assert tuned.lengths is not None
    assert (tuned.lengths.requests, tuned.lengths.shortest, tuned.lengths.longest) == (64, 3, 60)
    assert {trial.config.buckets for trial in tuned.trials} > {()}  # with buckets and without
    assert "The requests had lengths from 3 to 60" in Path(report.report).read_text()
    requests = [request(int(length)) for length in RNG.choice([1, *LENGTHS, 64, 100], 64)]
    served = lab.engine.discover("reader-of-lengths")
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda inputs: served.infer(inputs)["y"], requests))
    for inputs, answer in zip(requests, answers, strict=True):
        assert np.allclose(answer, TABLE[inputs["ids"]].mean(1), rtol=1e-4, atol=1e-5)


def test_a_model_that_looks_at_its_padding_is_served_without_buckets_and_the_report_says_why(lab: Lab) -> None:
    report = released(lab, "careless-reader", masked=False)
    packages = lab.engine.history(report).last(Packages)
    assert packages is not None
    assert any("no buckets of lengths" in note and "padding changes the answer" in note for note in packages.notes)
    assert "padding changes the answer" in Path(report.report).read_text()
    inputs = request(5)
    answer = lab.engine.discover("careless-reader").infer(inputs)["y"]
    assert np.allclose(answer, TABLE[inputs["ids"]].mean(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("pad", "why"),
    [("{idz: 0}", "'idz', which is not an input"), ("{ids: 0.5}", "'ids' up with 0.5, which is not INT64")],
)
def test_a_pad_that_is_not_the_model_s_refuses_the_release(lab: Lab, pad: str, why: str) -> None:
    spec = SPEC.replace("{ids: 0, mask: 0}", pad)
    name = f"reader-of-{pad[1:4]}-{len(pad)}"
    version = lab.log(
        name,
        lambda **options: lab.mlflow.onnx.log_model(reader(masked=True), input_example=request(9), **options),
        spec=spec,
    )
    report = lab.wait(name, version, seconds=120)
    assert report.exit_code == 65
    assert why in report.reason
