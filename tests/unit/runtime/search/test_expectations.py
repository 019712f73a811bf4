import pytest

from shiplift.runtime.records.calibration import GraphKind, Rate
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.search.expectations import Expectations, expectations_of, graph_like
from tests.unit.examples import artifact, calibration, config, package, signature

FP32, INT8 = package(), package(precision="int8")
LARGE = package(repository=artifact("a", kind="tree", size_bytes=50 << 20))
TREES = package(engine="trees")
SPEEDS = {"onnxruntime": 1.0, "openvino": 100.0}


def rate(rows: float, *, instances: int = 1, threads: int = 1, batch: int = 1, **form: object) -> Rate:
    graph: GraphKind = form.get("graph", "small")  # type: ignore[assignment]
    engine: Engine = form.get("engine", "onnxruntime")  # type: ignore[assignment]
    precision: Precision = form.get("precision", "fp32")  # type: ignore[assignment]
    return Rate(
        graph=graph,
        engine=engine,
        precision=precision,
        instances=instances,
        threads=threads,
        batch=batch,
        rows_per_s=rows,
    )


def expected(*rates: Rate, disturbed: float = 0.0) -> Expectations:
    made = expectations_of(calibration(rates=rates, disturbed_cores=disturbed))
    assert made is not None
    return made


def test_without_a_calibration_nothing_is_expected() -> None:
    assert expectations_of(None) is None


@pytest.mark.parametrize(("batch", "rows"), [(1, 100.0), (4, 400.0), (2, 200.0), (16, 1600.0), (64, 1600.0)])
def test_rates_between_two_batches_are_between_their_rates(batch: int, rows: float) -> None:
    machine = expected(rate(100), rate(1600, batch=16))
    assert machine.rows_per_s(FP32, config(batch), [FP32]) == pytest.approx(rows)


def test_of_placements_the_most_similar_counts() -> None:
    machine = expected(rate(1), rate(2, instances=4), rate(3, threads=4), rate(4, instances=2, threads=2))
    at = {(1, 1): 1, (3, 1): 2, (8, 1): 2, (1, 3): 3, (1, 8): 3, (2, 2): 4}
    found = {(n, t): machine.rows_per_s(FP32, config(1, 0, n, t), [FP32]) for n, t in at}
    assert found == pytest.approx(at)


@pytest.mark.parametrize(
    ("packages", "graph"),
    [([FP32, INT8], "small"), ([LARGE, INT8], "dense"), ([FP32, TREES], "trees")],
)
def test_a_model_is_like_the_graph_of_its_engines_and_its_size(packages: list[Package], graph: str) -> None:
    assert graph_like(packages) == graph


def test_nothing_is_expected_of_what_was_not_measured_or_answers_in_pieces() -> None:
    machine = expected(rate(1))
    streams = package(signature=signature().model_copy(update={"streamed": True}))
    assert machine.rows_per_s(INT8, config(), [INT8]) is None
    assert machine.rows_per_s(LARGE, config(), [LARGE]) is None
    assert machine.rows_per_s(package(engine="python"), config(), [FP32]) is None
    assert machine.rows_per_s(streams, config(), [streams]) is None


def slow_int8(best: float) -> list[Rate]:
    """int8 at a tenth of fp32's speed, but in one case at `best` times it."""
    cases: list[tuple[GraphKind, int, float]] = [("dense", 1, 0.1), ("dense", 8, 0.1), ("small", 1, best)]
    return [
        each
        for graph, batch, share in cases
        for each in (
            rate(100, graph=graph, batch=batch),
            rate(100 * share, graph=graph, batch=batch, precision="int8"),
        )
    ]


def test_a_form_that_is_much_slower_in_every_case_is_hopeless_and_the_reason_has_its_ratio() -> None:
    hopeless = expected(*slow_int8(0.5)).hopeless([FP32, INT8])
    assert set(hopeless) == {INT8.variant}
    assert hopeless[INT8.variant].startswith("int8 on ONNX Runtime was not tried")
    assert "at least 2 times as fast" in hopeless[INT8.variant]


@pytest.mark.parametrize(
    ("rates", "disturbed", "packages"),
    [
        (slow_int8(0.7), 0.0, [FP32, INT8]),  # in one case it is nearly as fast
        (slow_int8(0.5), 1.5, [FP32, INT8]),  # others may have slowed it down
        (slow_int8(0.5), 0.0, [INT8]),  # there is nothing faster among the packages
        (slow_int8(0.5)[:4], 0.0, [FP32, INT8]),  # the small graph was not measured
        (slow_int8(0.5), 0.0, [FP32, INT8, package(engine="python")]),  # code of its own
    ],
)
def test_in_doubt_nothing_is_hopeless(rates: list[Rate], disturbed: float, packages: list[Package]) -> None:
    assert expected(*rates, disturbed=disturbed).hopeless(packages) == {}


def test_engines_are_not_compared_since_a_model_s_operators_decide() -> None:
    rates = [rate(rows, graph=graph, engine=engine) for graph in ("dense", "small") for engine, rows in SPEEDS.items()]
    machine = expected(*rates, rate(100, graph="trees", engine="trees"), rate(1, graph="trees"))
    assert machine.hopeless([FP32, package(engine="openvino")]) == {}
    assert machine.hopeless([FP32, TREES]) == {}
