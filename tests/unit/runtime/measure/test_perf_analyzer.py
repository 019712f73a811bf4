import base64
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from shiplift.runtime.base.errors import MeasurementFailed, MissingTool
from shiplift.runtime.measure import perf_analyzer
from shiplift.runtime.measure.generator import Demand, LoadTarget, Window
from shiplift.runtime.measure.generators import load_generator
from shiplift.runtime.measure.perf_analyzer import LoadRun, PerfAnalyzer, options
from shiplift.runtime.measure.perf_analyzer_input import write_requests
from shiplift.runtime.measure.requests import split
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.spec.measurement import Load
from tests.unit.examples import signature, site, tensor

ROW = {
    "Concurrency": "4",
    "Inferences/Second": "1282.5",
    "Client Send": "10",
    "Network+Server Send/Recv": "20",
    "Server Queue": "250",
    "Server Compute Input": "10",
    "Server Compute Infer": "600",
    "Server Compute Output": "15",
    "Client Recv": "3",
    "p50 latency": "700",
    "p90 latency": "900",
    "p95 latency": "1100",
    "p99 latency": "2300",
    "Avg latency": "800",
}
FOUR = Demand(concurrency=4)


def requests(folder: Path, tensors: Signature, limit: int = 32, **samples: Any) -> list[dict[str, Any]]:
    written = write_requests(folder / "requests.json", tensors, split(samples, limit=limit))
    assert written == folder / "requests.json"
    data: list[dict[str, Any]] = json.loads(written.read_text())["data"]
    return data


def test_each_sample_is_a_request_with_its_raw_bytes(tmp_path: Path) -> None:
    samples = np.arange(8, dtype=np.float32).reshape(2, 4)
    written = requests(tmp_path, signature(), input=samples)
    assert [request["input"]["shape"] for request in written] == [[4], [4]]
    assert [base64.b64decode(request["input"]["content"]["b64"]) for request in written] == [
        row.tobytes() for row in samples
    ]


def test_no_more_requests_are_written_than_asked_for(tmp_path: Path) -> None:
    samples = np.zeros((100, 4), np.float32)
    assert len(requests(tmp_path, signature(), input=samples)) == 32
    assert len(requests(tmp_path, signature(), input=samples, limit=5)) == 5
    assert len(requests(tmp_path, signature(), input=samples[:3])) == 3


def test_text_is_written_as_text(tmp_path: Path) -> None:
    tensors = Signature(inputs=(tensor("text", -1, 2, datatype="BYTES"),), outputs=())
    (request,) = requests(tmp_path, tensors, text=np.array([["ä", "b"]], dtype=object))
    assert request == {"text": {"content": ["ä", "b"], "shape": [2]}}


def test_a_scalar_per_sample_has_shape_one(tmp_path: Path) -> None:
    tensors = Signature(inputs=(tensor("x", -1, datatype="INT64"), tensor("t", -1, datatype="BYTES")), outputs=())
    written = requests(tmp_path, tensors, x=np.array([7, 8]), t=np.array(["a", "b"], dtype=object))
    assert [request["x"]["shape"] for request in written] == [[1], [1]]
    assert base64.b64decode(written[1]["x"]["content"]["b64"]) == np.int64(8).tobytes()
    assert written[1]["t"] == {"content": ["b"], "shape": [1]}


@pytest.mark.parametrize("dtype", ["BOOL", "UINT8", "INT32", "FP16", "FP64"])
def test_every_type_is_written_in_its_own_width(tmp_path: Path, dtype: Any) -> None:
    from shiplift.runtime.model.tensors import numpy_type

    tensors = Signature(inputs=(tensor("x", -1, 2, datatype=dtype),), outputs=())
    sample = np.ones((1, 2), numpy_type(dtype))
    (request,) = requests(tmp_path, tensors, x=sample.T.copy().T)
    assert base64.b64decode(request["x"]["content"]["b64"]) == sample.tobytes()


def run(row: Any = None, **changes: Any) -> LoadRun:
    fields: dict[str, Any] = {
        "row": ROW if row is None else row,
        "windows": ((1000.0, 2.0), (1000.0, 2.0), (1000.0, 2.0)),
        "sent_per_s": 0.0,
        "late_percent": 0.0,
        "overhead_percent": 1.0,
        "client_cores": 0.2,
        "seconds": 1.0,
    }
    return LoadRun(**fields | changes)


def point_of(row: Any = None, demand: Demand = Demand(concurrency=4), **changes: Any) -> LoadPoint:  # noqa: B008
    return perf_analyzer._point(run(row, **changes), demand, Window(window_ms=100, stability_percent=10))


def test_a_row_of_perf_analyzer_is_a_point_in_milliseconds() -> None:
    point = point_of(windows=((1000.0, 1.0), (1031.4, 1.0), (968.6, 1.0)))
    assert (point.concurrency, point.throughput_per_s) == (4, 1282.5)
    assert (point.p50_ms, point.p90_ms, point.p95_ms, point.p99_ms) == (0.7, 0.9, 1.1, 2.3)
    assert (point.queue_ms, point.compute_ms) == (0.25, 0.625)
    assert (point.stable, point.spread_percent) == (True, 3.1)


def test_server_times_may_be_missing() -> None:
    row = {name: value for name, value in ROW.items() if not name.startswith("Server")}
    assert (point_of(row).queue_ms, point_of(row).compute_ms) == (0, 0)


def test_windows_that_differ_are_marked() -> None:
    point = point_of(windows=((1000.0, 1.0), (800.0, 1.0), (1200.0, 1.0)))
    assert (point.stable, point.spread_percent) == (False, 20.0)
    assert not point_of(windows=()).stable


@pytest.mark.parametrize(("output", "sent"), [("Avg send request rate: 90.50 infer/sec", 362), ("", 400)])
def test_a_client_that_kept_its_schedule_sent_what_was_asked(output: str, sent: float) -> None:
    """perf_analyzer prints requests, not samples, and nothing if at most 1 % were late."""
    target = LoadTarget(model="digits", address="127.0.0.1:1", requests=Path("requests.json"), batch=4)
    assert perf_analyzer._sent_per_s(output, target, Demand(rate_per_s=400)) == sent


def test_latency_must_agree_too_if_the_spec_says_so() -> None:
    measured = run(windows=((1000.0, 1.0), (1000.0, 2.0), (1000.0, 3.0)))
    assert (measured.spread_percent, measured.latency_spread_percent) == (0, 50)
    assert measured.stable(Window(window_ms=100, stability_percent=10))
    assert not measured.stable(Window(window_ms=100, stability_percent=10, steady_latency=True))
    assert measured.stable(Window(window_ms=100, stability_percent=50, steady_latency=True))


@pytest.mark.parametrize(
    ("changes", "saturated"),
    [
        ({}, False),
        ({"overhead_percent": 60.0}, True),
        ({"client_cores": 1000.0}, True),
        ({"sent_per_s": 70.0}, True),
        ({"late_percent": 30.0}, True),
        ({"sent_per_s": 930.0}, False),
    ],
)
def test_a_client_that_was_the_bottleneck_is_marked(changes: dict[str, Any], saturated: bool) -> None:
    demand = Demand(rate_per_s=1000)
    assert run(**{"sent_per_s": 1000.0} | changes).saturated(demand, 1000) is saturated


def test_chance_alone_does_not_make_a_client_slow() -> None:
    assert not run(sent_per_s=7.0).saturated(Demand(rate_per_s=10), 300)


def test_arrivals_do_not_wait_for_answers() -> None:
    target = LoadTarget(model="digits", address="127.0.0.1:1", requests=Path("requests.json"))
    assert options(target, Demand(concurrency=8)) == ["--concurrency-range", "8"]
    words = options(target, Demand(rate_per_s=250))
    assert words[:2] == ["--request-rate-range", "250"]
    assert {"poisson", "--async"} <= set(words)
    in_batches = LoadTarget(model="digits", address="127.0.0.1:1", requests=Path("requests.json"), batch=5)
    assert options(in_batches, Demand(rate_per_s=250))[1] == "50"
    assert (str(Demand(rate_per_s=250)), str(Demand(concurrency=8))) == ("250 requests/s", "concurrency 8")


def test_requests_of_several_lengths_are_written_each_with_its_own(tmp_path: Path) -> None:
    tensors = Signature(inputs=(tensor("x", -1, -1, datatype="INT64"),), outputs=())
    written = write_requests(tmp_path / "r.json", tensors, [{"x": np.arange(n)} for n in (3, 7)])
    assert [request["x"]["shape"] for request in json.loads(written.read_text())["data"]] == [[3], [7]]


def test_bytes_that_are_not_text_are_sent_unchanged(tmp_path: Path) -> None:
    tensors = Signature(inputs=(tensor("jpeg", -1, 1, datatype="BYTES"),), outputs=())
    image = b"\xff\xd8\xff\x00"
    written = write_requests(tmp_path / "r.json", tensors, [{"jpeg": np.array([image], dtype=object)}])
    (request,) = json.loads(written.read_text())["data"]
    assert base64.b64decode(request["jpeg"]["content"]["b64"]) == b"\x04\x00\x00\x00" + image


@pytest.mark.parametrize("name", ["Inferences/Second", "p50 latency", "p90 latency", "p95 latency", "p99 latency"])
@pytest.mark.parametrize("value", [None, "", "-nan", "n/a"])
def test_a_missing_number_is_never_zero(name: str, value: str | None) -> None:
    """A latency of 0 ms would be within every limit."""
    row: dict[str, str] = {column: text for column, text in ROW.items() if column != name} | (
        {name: value} if value is not None else {}
    )
    with pytest.raises(MeasurementFailed, match=name):
        point_of(row)


def test_nothing_answered_is_no_measurement() -> None:
    with pytest.raises(MeasurementFailed, match="no request was answered at concurrency 4"):
        point_of(ROW | {"Inferences/Second": "0"})


@pytest.mark.parametrize(("text", "row"), [("", None), ("a,b\n", None), ("a,b\n1,2\n3,4\n", {"a": "3", "b": "4"})])
def test_the_last_row_of_the_table_counts(tmp_path: Path, text: str, row: Any) -> None:
    (tmp_path / "out.csv").write_text(text)
    assert perf_analyzer._row(tmp_path / "out.csv") == row
    assert perf_analyzer._row(tmp_path / "nowhere.csv") is None


def test_without_perf_analyzer_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    target = LoadTarget(model="digits", address="127.0.0.1:1", requests=tmp_path / "requests.json")
    with pytest.raises(MissingTool, match="perf_analyzer is not at") as error:
        PerfAnalyzer(ServerEnvironment(tmp_path)).measure(target, FOUR, Window(window_ms=100), tmp_path)
    assert "shiplift doctor" in error.value.do


@pytest.fixture
def environment(tmp_path: Path) -> ServerEnvironment:
    """An environment whose perf_analyzer is a program that prints an error and dies."""
    failing = ServerEnvironment(tmp_path / "environment")
    failing.perf_analyzer.parent.mkdir(parents=True)
    failing.perf_analyzer.write_text("#!/bin/sh\necho loading; echo failed: connection refused >&2; exit 99\n")
    failing.perf_analyzer.chmod(0o755)
    return failing


def test_the_error_of_a_dead_measurement_has_its_demand_and_last_lines(
    environment: ServerEnvironment, tmp_path: Path
) -> None:
    target = LoadTarget(model="digits", address="127.0.0.1:1", requests=tmp_path / "requests.json")
    (tmp_path / "digits-4-0.csv").write_text("Inferences/Second\n99\n")  # from an earlier run: to be ignored
    with pytest.raises(MeasurementFailed, match="ended with 99 at concurrency 4: loading / failed: connection refused"):
        PerfAnalyzer(environment).measure(target, FOUR, Window(window_ms=100), tmp_path)


def test_the_client_may_crash_twice_and_no_more(environment: ServerEnvironment, tmp_path: Path) -> None:
    count, row = tmp_path / "count", ",".join(ROW) + "\\n" + ",".join(ROW.values())
    environment.perf_analyzer.write_text(
        f"#!/bin/sh\necho x >> {count}\n[ $(wc -l < {count}) -gt $CRASHES ] || kill -ABRT $$\n"
        f'for out; do :; done; printf "{row}\\n" > "$out"\n'
        'for n in 1 2 3; do echo "Pass [$n] throughput: 1282.5 infer/sec. p99 latency: 2300 usec"; done\n'
    )
    script = environment.perf_analyzer.read_text()
    target = LoadTarget(model="digits", address="127.0.0.1:1", requests=tmp_path / "requests.json")
    generator = PerfAnalyzer(environment)
    for crashes, survives in ((0, True), (2, True), (3, False)):
        count.unlink(missing_ok=True)
        environment.perf_analyzer.write_text(script.replace("$CRASHES", str(crashes)))
        if survives:
            assert generator.measure(target, FOUR, Window(window_ms=100), tmp_path).point.throughput_per_s == 1282.5
        else:
            with pytest.raises(MeasurementFailed, match="ended with -6"):
                generator.measure(target, FOUR, Window(window_ms=100), tmp_path)
        assert len(count.read_text().splitlines()) == min(crashes, 2) + 1


@pytest.mark.parametrize(
    "said", ["No valid requests recorded within time interval.", "failed to find the requested model version"]
)
def test_a_window_in_which_no_request_ended_is_made_longer(
    environment: ServerEnvironment, tmp_path: Path, said: str
) -> None:
    row = ",".join(ROW) + "\\n" + ",".join(ROW.values())
    environment.perf_analyzer.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/words\n'
        f'case "$*" in *"interval 100 "*|*"interval 400 "*) echo "Pass [3] cb::Error: {said}"; exit 99;; esac\n'
        f'for out; do :; done; printf "{row}\\n" > "$out"\n'
        'for n in 1 2 3; do echo "Pass [$n] throughput: 1282.5 infer/sec. p99 latency: 2300 usec"; done\n'
    )
    target = LoadTarget(model="digits", address="127.0.0.1:1", requests=tmp_path / "requests.json")
    measured = PerfAnalyzer(environment).measure(target, FOUR, Window(window_ms=100), tmp_path)
    assert measured.point.throughput_per_s == 1282.5
    assert len((tmp_path / "words").read_text().splitlines()) == 3


def test_a_model_of_which_all_requests_fail_is_not_waited_for(environment: ServerEnvironment, tmp_path: Path) -> None:
    environment.perf_analyzer.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/words\necho "failed to find the requested model version"; exit 99\n'
    )
    target = LoadTarget(model="digits", address="127.0.0.1:1", requests=tmp_path / "requests.json")
    with pytest.raises(MeasurementFailed, match="requested model version"):
        PerfAnalyzer(environment).measure(target, FOUR, Window(window_ms=1000), tmp_path)
    assert len((tmp_path / "words").read_text().splitlines()) == 2


def test_every_protocol_of_a_spec_has_a_generator_that_speaks_it(tmp_path: Path) -> None:
    at = site(tmp_path)
    for protocol in get_args(Load.model_fields["protocol"].annotation):
        assert load_generator(at, protocol) == PerfAnalyzer(ServerEnvironment(Path(at.server_environment)))


def test_a_measurement_keeps_every_run_and_the_requested_percentile(
    environment: ServerEnvironment, tmp_path: Path
) -> None:
    row = ",".join(ROW) + "\\n" + ",".join(ROW.values())
    environment.perf_analyzer.write_text(
        f'#!/bin/sh\nfor out; do :; done; printf "{row}\\n" > "$out"; echo "$@" > {tmp_path}/words\n'
        'for n in 1 2 3; do echo "Pass [$n] throughput: ${n}00 infer/sec. p95 latency: 1100 usec"; done\n'
    )
    target = LoadTarget(model="digits", address="127.0.0.1:1", requests=tmp_path / "requests.json")
    window = Window(window_ms=100, attempts=2, percentile=95)
    measured = PerfAnalyzer(environment).measure(target, FOUR, window, tmp_path)
    assert "--percentile 95" in (tmp_path / "words").read_text()
    assert [run["windows"] for run in measured.runs] == [((100.0, 1.1), (200.0, 1.1), (300.0, 1.1))] * 2
    assert (measured.point.stable, measured.point.spread_percent) == (False, 50.0)
