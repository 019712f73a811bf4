"""The bundled server's own backend of trees: the author's answers, from NVIDIA's file and parameters."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import treelite
from numpy.typing import NDArray
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
)
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.model.conversion.forests import of_sklearn
from shiplift.runtime.records.tensor import Datatype, Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm
from tests.integration.backends import ask, put_files, server_for
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
_FEATURES = 5
_RNG = np.random.default_rng(0)
ROWS = _RNG.normal(size=(300, _FEATURES)).astype(np.float32).round(1)  # of few values, so that votes tie
CLASSES = np.digitize(ROWS.sum(1), [-1, 1])
BOTH = {"label": "class", "probabilities": "scores"}


def tensors(*described: tuple[str, Datatype, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, datatype=kind, shape=(-1, *shape)) for name, kind, shape in described)


def put_forest(work: Path, model: Any, signature: Signature, name: str = "m", **options: Any) -> None:
    folder = work / f"{name}-trees"
    folder.mkdir()
    treelite.sklearn.import_model(model).serialize(folder / "checkpoint.tl")
    put_files(work, folder, signature, name, engine="trees", **options)


def classifies(kind: Datatype = "FP32", classes: int = 3) -> Signature:
    outputs = tensors(("label", "INT64", ()), ("probabilities", "FP64", (classes,)))
    return Signature(inputs=tensors(("x", kind, (_FEATURES,))), outputs=outputs)


def test_concurrent_requests_of_any_size_get_the_authors_labels_and_probabilities_bit_for_bit(tmp_path: Path) -> None:
    values = np.array([-7, 3, 40])
    forest = RandomForestClassifier(10, random_state=0).fit(ROWS, values[CLASSES])
    form = TreesForm(features="FP32", answers=BOTH, classifier=True, classes=tuple(values.tolist()))
    put_forest(tmp_path, forest, classifies(), trees=form, instances=2, delay_us=2000)
    asked = [_RNG.choice(ROWS.reshape(-1), (size, _FEATURES)) for size in _RNG.integers(1, 9, 200)]
    with server_for(tmp_path) as (server, client):
        client.load("m")
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda x: ask(server, {"x": x}), asked))
        stats, total = grpc.InferenceServerClient(server.grpc), sum(map(len, asked))
        assert until(lambda: stats.get_inference_statistics("m").model_stats[0].inference_count == total)
        assert stats.get_inference_statistics("m").model_stats[0].execution_count < len(asked)  # some were batched
    for x, answer in zip(asked, answers, strict=True):
        assert answer.as_numpy("label").reshape(-1).tolist() == forest.predict(x).tolist()
        assert (answer.as_numpy("probabilities") == forest.predict_proba(x)).all()


@pytest.mark.parametrize(("kind", "threads"), [("FP32", 1), ("FP64", 2)])
def test_features_are_compared_in_the_authors_precision_and_missing_ones_are_nan(
    kind: Datatype, threads: int, tmp_path: Path
) -> None:
    """scikit-learn rounds what a forest reads to 32 bits, and not what histogram boosting reads."""
    dtype = np.float32 if kind == "FP32" else np.float64
    holes = np.where(_RNG.random(ROWS.shape) < 0.1, np.nan, ROWS)
    boosted = HistGradientBoostingClassifier(max_iter=5, random_state=0).fit(holes, CLASSES)
    forest = RandomForestClassifier(5, random_state=0).fit(holes, CLASSES)
    close = np.concatenate([np.nextafter(holes.astype(dtype), dtype(side)) for side in (-np.inf, np.inf)])
    asked = np.concatenate([holes, close, close + 0.05]).astype(dtype)
    exact = TreesForm(features="FP64", answers=BOTH)
    pinned = {"cpu_cores": str(min(os.sched_getaffinity(0)))}  # fewer cores than threads
    put_forest(tmp_path, boosted, classifies(kind), trees=exact, threads=threads, settings=pinned)
    put_forest(tmp_path, forest, classifies(kind), "forest", trees=TreesForm(features="FP32", answers=BOTH))
    with server_for(tmp_path) as (server, client):
        for name, model in (("m", boosted), ("forest", forest)):
            client.load(name)
            parts = [ask(server, {"x": asked[at : at + 16]}, name=name) for at in range(0, len(asked), 16)]
            labels = np.concatenate([part.as_numpy("label").reshape(-1) for part in parts])
            scores = np.concatenate([part.as_numpy("probabilities") for part in parts])
            assert (labels == model.predict(asked)).all()
            assert np.allclose(scores, model.predict_proba(asked), rtol=0, atol=1e-12)


def test_the_configuration_of_nvidias_backend_means_the_same(tmp_path: Path) -> None:
    """Its threshold is for a forest with one score; several are compared with each other."""
    binary = RandomForestClassifier(10, random_state=0).fit(ROWS, CLASSES > 0)
    single = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(ROWS, CLASSES > 0)
    inputs = tensors(("input__0", "FP32", (_FEATURES,)))
    classes = Signature(inputs=inputs, outputs=tensors(("output__0", "FP32", (1,))))
    scores = Signature(inputs=inputs, outputs=tensors(("output__0", "FP32", (2,))))
    votes, shares = binary.predict_proba(ROWS[:16]), single.predict_proba(ROWS[:16])
    both = {"output_class": "true", "predict_proba": "true"}
    cases: dict[str, tuple[Any, Signature, dict[str, str], NDArray[Any]]] = {
        "class": (binary, classes, {"output_class": "true", "threshold": "0.9"}, votes.argmax(1)[:, None]),
        "over": (single, classes, {"is_classifier": "true", "threshold": "0.3"}, shares[:, 1:] > 0.3),
        "proba": (binary, scores, both, votes.astype(np.float32)),
        "one": (single, classes, both, shares[:, 1:].astype(np.float32)),
        "raw": (single, classes, {"output_class": "false"}, shares[:, 1:].astype(np.float32)),
    }
    for name, (model, signature, settings, _) in cases.items():
        put_forest(tmp_path, model, signature, name, trees=TreesForm(answers={}), settings=settings)
    with server_for(tmp_path) as (server, client):
        for name, (*_, expected) in cases.items():
            client.load(name)
            got = ask(server, {"input__0": ROWS[:16]}, name=name).as_numpy("output__0")
            assert got.dtype == np.float32
            assert (got == expected).all(), name


def test_columns_of_any_type_are_one_row_and_several_targets_one_output(tmp_path: Path) -> None:
    columns: list[tuple[str, Datatype, tuple[int, ...]]] = [
        ("whole", "INT64", (1,)),
        ("rest", "FP64", (_FEATURES - 1,)),
    ]
    both = np.column_stack([ROWS.sum(1) * 300_000, ROWS[:, 0] * 80])
    whole = ROWS.astype(np.float64)
    whole[:, 0] = (whole[:, 0] * 1e6).round() + 2**26  # the next float32 is 8 away
    forest = ExtraTreesRegressor(5, random_state=0).fit(whole, both)
    signature = Signature(inputs=tensors(*columns), outputs=tensors(("variable", "FP32", (2,))))
    put_forest(tmp_path, forest, signature, trees=TreesForm(answers={"variable": "scores"}))
    asked = whole[:16]
    with server_for(tmp_path) as (server, client):
        client.load("m")
        feeds = {"whole": asked[:, :1].astype(np.int64), "rest": np.ascontiguousarray(asked[:, 1:])}
        answer = ask(server, feeds).as_numpy("variable")
        assert (answer == forest.predict(asked).astype(np.float32)).all()
        feeds["rest"] = feeds["rest"][:3]
        with pytest.raises(InferenceServerException, match=r"batch|rows"):
            ask(server, feeds)


def test_an_isolation_forest_decides_as_its_author_s_also_on_its_offset(tmp_path: Path) -> None:
    detector = IsolationForest(n_estimators=10, contamination=0.1, random_state=0).fit(ROWS)
    forest = of_sklearn(detector)
    assert forest is not None
    form = TreesForm(
        answers={"label": "class", "scores": "scores"},
        threshold=forest.threshold,
        subtracted_from=forest.subtracted_from,
        classes=(1, -1),
    )
    outputs = tensors(("label", "INT64", (1,)), ("scores", "FP64", (1,)))
    put_forest(tmp_path, detector, Signature(inputs=classifies().inputs, outputs=outputs), trees=form)
    with server_for(tmp_path) as (server, client):
        client.load("m")
        answers = [ask(server, {"x": ROWS[at : at + 15]}) for at in range(0, 300, 15)]
    labels, scores = (np.concatenate([answer.as_numpy(name) for answer in answers]) for name in ("label", "scores"))
    assert (labels[:, 0] == detector.predict(ROWS)).all()
    assert np.allclose(scores[:, 0], detector.decision_function(ROWS), rtol=0, atol=1e-8)


def test_what_is_no_forest_is_refused_and_the_server_keeps_running(tmp_path: Path) -> None:
    forest = RandomForestClassifier(5, random_state=0).fit(ROWS, CLASSES)
    refused: dict[str, tuple[dict[str, str], str]] = {
        "format": ({"model_type": "xgboost_json"}, "model_type is treelite_checkpoint, not 'xgboost_json'"),
        "classes": ({"classes": "1,2"}, "another number of classes"),
        "list": ({"classes": "1,b,3"}, "is not a list of at most 4096 whole numbers"),
        "threshold": ({"threshold": "half"}, "parameter threshold is not a number: 'half'"),
        "threads": ({"cpu_nthread": "0"}, "cpu_nthread is not a number above 0"),
        "broken": ({}, "treelite: "),
    }
    for name, (settings, _) in refused.items():
        put_forest(tmp_path, forest, classifies(), name, trees=TreesForm(answers=BOTH), settings=settings)
    (tmp_path / "models" / "broken" / "1" / "checkpoint.tl").write_bytes(b"no trees")
    put_forest(tmp_path, forest, classifies(classes=4), "wide", trees=TreesForm(answers=BOTH))
    put_forest(tmp_path, forest, classifies(), trees=TreesForm(answers=BOTH))
    with server_for(tmp_path) as (server, client):
        for name, message in (*((name, why) for name, (_, why) in refused.items()), ("wide", "other dimensions")):
            with pytest.raises(ServerFailed, match=message):
                client.load(name)
        client.load("m")
        assert ask(server, {"x": ROWS[:4]}).as_numpy("label").reshape(-1).tolist() == forest.predict(ROWS[:4]).tolist()
