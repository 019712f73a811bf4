"""A model that crashes, hangs or eats memory ends its own worker: neither the server nor a neighbour notices."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.serving.machine.quarantine import crashed
from shiplift.runtime.serving.machine.server import Server
from shiplift.runtime.serving.triton.config import parse, render
from shiplift.runtime.spec.serving_settings import Serving
from tests.integration import runaway
from tests.integration.backends import ask, lookup, model, put, server_for, two_by_two
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
ROW = {"a": np.ones((1, 2), np.float32), "b": np.ones((1, 1), np.float32)}
LOWEST = -(2**31)
ENGINES = ("onnxruntime", "openvino")


def dividing() -> Any:
    """y = x mod d: with INT32_MIN and -1, the processor raises SIGFPE."""
    nodes = [helper.make_node("Mod", ["x", "d"], ["y"])]
    return model(nodes, [("x", "INT32", ["n", 1]), ("d", "INT32", ["n", 1])], [("y", "INT32", ["n", 1])])


def hungry() -> Any:
    """y = x plus zero times the largest of as many numbers as the largest of n says."""
    constants = (("first", np.int64(0)), ("step", np.int64(1)), ("zero", np.float32(0)))
    nodes = [
        helper.make_node("ReduceMax", ["n"], ["most"], keepdims=0),
        helper.make_node("Range", ["first", "most", "step"], ["numbers"]),
        helper.make_node("Cast", ["numbers"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["floats"], ["largest"], keepdims=0),
        helper.make_node("Mul", ["largest", "zero"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    tensors = tuple(numpy_helper.from_array(np.asarray(value), name) for name, value in constants)
    return model(nodes, [("x", "FP32", ["b", 1]), ("n", "INT64", ["b", 1])], [("y", "FP32", ["b", 1])], tensors)


def of(x: int, d: int) -> dict[str, Any]:
    return {"x": np.array([[x]], np.int32), "d": np.array([[d]], np.int32)}


MAGIC = of(LOWEST, -1)


@contextmanager
def steady(server: Server, name: str = "neighbour") -> Iterator[list[str]]:
    """A neighbour's traffic: the errors of its requests, which must stay empty."""
    failures, ends, answered = [], threading.Event(), threading.Event()

    def send() -> None:
        while not ends.is_set():
            try:
                assert ask(server, ROW, name=name).as_numpy("sum").tolist() == [[2.0, 2.0]]
                answered.set()
            except (InferenceServerException, AssertionError) as error:
                failures.append(str(error))
            ends.wait(0.005)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert answered.wait(20)
        yield failures
    finally:
        ends.set()
        thread.join()


def workers(server: Server) -> list[psutil.Process]:
    family = psutil.Process(server.process.pid).children(recursive=True)
    return sorted((each for each in family if each.name() == "model_worker"), key=lambda each: each.create_time())


def answers(server: Server, inputs: dict[str, Any], output: str = "y") -> Any:
    """The answer of `m`, once its worker is back."""

    def once() -> Any:
        try:
            return ask(server, inputs).as_numpy(output).tolist()
        except InferenceServerException as error:
            if "the model's worker" in str(error):
                return None
            raise

    return until(once)


def test_a_magic_request_ends_the_worker_is_remembered_and_costs_a_neighbour_nothing(tmp_path: Path) -> None:
    put(tmp_path, dividing())
    put(tmp_path, two_by_two(), "neighbour")
    with server_for(tmp_path) as (server, client):
        client.load("m")
        client.load("neighbour")
        with steady(server) as failures:
            for crashes in (1, 2):
                with pytest.raises(InferenceServerException, match="worker died of SIGFPE while it ran the request"):
                    ask(server, MAGIC)
                with pytest.raises(InferenceServerException, match="died of SIGFPE: it starts again in"):
                    ask(server, of(7, 4))
                assert answers(server, of(7, 4)) == [[3]]
                (found,) = crashed(server.process.pid)
                assert (found.model, found.version, found.crashes, found.why) == ("m", 1, crashes, "died of SIGFPE")
                assert found.pause_s == crashes
            (pid,) = (each.pid for each in workers(server)[1:])
            for _ in range(3):
                with pytest.raises(InferenceServerException, match="died each time it ran this request"):
                    ask(server, MAGIC)
            assert answers(server, of(9, 4)) == [[1]]
            assert [each.pid for each in workers(server)[1:]] == [pid]
            assert failures == []


def test_a_worker_that_is_killed_comes_back_and_is_quarantined_after_three_crashes(tmp_path: Path) -> None:
    put(tmp_path, two_by_two())
    put(tmp_path, two_by_two(), "neighbour")
    with server_for(tmp_path) as (server, client):
        client.load("neighbour")
        client.load("m")
        with steady(server) as failures:
            for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL):
                os.kill(workers(server)[-1].pid, number)
                assert until(lambda: any(each.why == f"died of {number.name}" for each in crashed(server.process.pid)))  # noqa: B023 - used at once
                assert answers(server, ROW, "sum") == [[2.0, 2.0]]
            assert failures == []
        (found,) = crashed(server.process.pid)
        finding = found.finding(time.time())
        assert finding.startswith("quarantined: crashed 3 times, it was started again: its worker died of SIGKILL")
        client.unload("m")
        until(lambda: crashed(server.process.pid) == ())  # Triton answers before the model is gone


def put_engine(work: Path, engine: Any) -> tuple[dict[str, Any], str]:
    """Adds `m`, which an engine computes within a second; returns a request to it and one of its outputs."""
    serving = Serving(warmup=False, request_timeout_s=1)
    if engine != "trees":
        put(work, two_by_two(), engine=engine, serving=serving)
        return ROW, "sum"
    from sklearn.ensemble import RandomForestClassifier

    from shiplift.runtime.records.trees import TreesForm
    from tests.integration.test_trees_backend import BOTH, CLASSES, ROWS, classifies, put_forest

    form = TreesForm(features="FP32", answers=BOTH, classifier=True, classes=(0, 1, 2))
    put_forest(work, RandomForestClassifier(2).fit(ROWS, CLASSES), classifies(), trees=form, serving=serving)
    return {"x": ROWS[:1]}, "label"


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*ENGINES, "trees"])
def test_every_engine_s_worker_comes_back_from_a_crash_and_a_hang_after_longer_pauses(
    tmp_path: Path, engine: Any
) -> None:
    row, output = put_engine(tmp_path, engine)
    put(tmp_path, two_by_two(), "neighbour")
    with server_for(tmp_path) as (server, client):
        client.load("neighbour")
        client.load("m")
        expected = answers(server, row, output)
        with steady(server) as failures:
            for crashes, number in enumerate((signal.SIGSEGV, signal.SIGKILL, signal.SIGSTOP), 1):
                os.kill(workers(server)[-1].pid, number)
                if number == signal.SIGSTOP:  # it answers no more, as one that hangs
                    with pytest.raises(InferenceServerException, match="stopped after 1 s, its limit"):
                        ask(server, row)
                assert until(lambda: [each for each in crashed(server.process.pid) if each.crashes == crashes])  # noqa: B023 - used at once
                (found,) = crashed(server.process.pid)
                assert (found.model, found.pause_s) == ("m", 2 ** (crashes - 1))
                assert answers(server, row, output) == expected
            assert found.finding(time.time()).startswith("quarantined: crashed 3 times, it was started again: ")
            assert failures == []


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_past_the_limit_fails_the_request_and_nothing_else(tmp_path: Path, engine: Any) -> None:
    put(tmp_path, hungry(), engine=engine, settings={"memory_mb": "512"})
    put(tmp_path, two_by_two(), "neighbour")
    with server_for(tmp_path) as (server, client):
        client.load("m")
        client.load("neighbour")
        with steady(server) as failures:
            with pytest.raises(InferenceServerException):
                ask(server, {"x": np.ones((1, 1), np.float32), "n": np.array([[2**30]], np.int64)})
            small = {"x": np.ones((1, 1), np.float32), "n": np.array([[10]], np.int64)}
            assert answers(server, small) == [[1.0]]
            assert failures == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kernel_that_never_ends_is_ended_with_its_worker(tmp_path: Path, engine: Any) -> None:
    put(tmp_path, runaway.endless(), engine=engine, serving=Serving(warmup=False, request_timeout_s=1))
    put(tmp_path, two_by_two(), "neighbour")
    with server_for(tmp_path) as (server, client):
        client.load("m")
        client.load("neighbour")
        with steady(server) as failures:
            began = time.monotonic()
            with pytest.raises(InferenceServerException, match="stopped after 1 s, its limit"):
                ask(server, {"x": np.array([[runaway.MAGIC]], np.float32)})
            assert time.monotonic() - began < 6
            assert answers(server, {"x": np.array([[3.0]], np.float32)}) == [[3.0]]
            assert failures == []


def _crash(server: Server, model: str) -> str:
    """Why a model's worker ended, once it has."""
    return str(until(lambda: [each.why for each in crashed(server.process.pid) if each.model == model])[0])


def test_a_process_beyond_its_limits_is_ended_and_says_which(tmp_path: Path) -> None:
    limits = {"memory_mb": "1", "threads": "0"}
    for name, value in limits.items():
        put(tmp_path, two_by_two(), name, settings={{"threads": "max_threads"}.get(name, name): value})
    put(tmp_path, two_by_two(), "neighbour")
    with server_for(tmp_path) as (server, client):
        client.load("neighbour")
        refused = {}  # limits are looked at now and then: on a busy machine, that may be while a model loads
        with steady(server) as failures:
            for name in limits:
                try:
                    client.load(name)
                except ServerFailed as error:
                    refused[name] = error.what
            for name, limit in limits.items():
                why = refused.get(name) or _crash(server, name)
                assert "was ended: it used " in why
                assert f"its limit is {limit} (serving.limits.{name} in the model's spec)" in why
            assert failures == []


@pytest.mark.parametrize(
    ("engine", "told"),
    [("onnxruntime", r"stopped after 0\.2 s of CPU time, its limit \("), ("openvino", "did not stop at ")],
)
def test_an_execution_beyond_its_cpu_time_ends(tmp_path: Path, engine: Any, told: str) -> None:
    put(tmp_path, runaway.looping(), engine=engine, settings={"cpu_time_ms": "200"})
    with server_for(tmp_path) as (server, client):
        client.load("m")
        with pytest.raises(InferenceServerException, match=told + r".*limits\.cpu_s"):
            ask(server, {"x": np.array([[runaway.MAGIC]], np.float32)})
        assert answers(server, {"x": np.array([[3.0]], np.float32)}) == [[3.0]]


def test_a_model_whose_worker_dies_while_loading_says_so_each_time(tmp_path: Path) -> None:
    put(tmp_path, two_by_two(), "neighbour")
    put(tmp_path, two_by_two(), settings={"load_timeout_ms": "1"})
    with server_for(tmp_path) as (server, client):
        client.load("neighbour")
        with steady(server) as failures:
            for _ in range(3):
                with pytest.raises(ServerFailed, match="the model's worker did not answer in time"):
                    client.load("m")
            assert failures == []
        assert len(workers(server)) == 1


@pytest.mark.parametrize("instances", [1, 2])
def test_a_warm_up_that_fails_costs_the_server_and_a_neighbour_nothing(tmp_path: Path, instances: int) -> None:
    put(tmp_path, lookup(), instances=instances)
    put(tmp_path, two_by_two(), "neighbour")
    file = tmp_path / "models" / "m" / "config.pbtxt"
    config = parse(file.read_text())
    for batch, count in ((1, 0), (4, 2)):
        warmup = config.model_warmup.add(name=f"outside the table {batch}", batch_size=batch, count=count)
        tensor = warmup.inputs["x"]
        tensor.data_type, tensor.input_data_file = config.input[0].data_type, "outside"
        tensor.dims.append(1)
    file.write_text(render(config))
    (file.parent / "warmup").mkdir()
    (file.parent / "warmup" / "outside").write_bytes(np.array([9], np.int64).tobytes())
    with server_for(tmp_path) as (server, client):
        client.load("neighbour")
        with steady(server) as failures:
            for _ in range(8):
                with pytest.raises(ServerFailed, match=r"(?i)failed to run warmup sample.*out of (data )?bounds"):
                    client.load("m")
            assert failures == []
        assert len(workers(server)) == 1


def test_a_worker_has_no_network_no_programs_and_sees_no_other_model(tmp_path: Path) -> None:
    put(tmp_path, two_by_two())
    put(tmp_path, two_by_two(), "neighbour")
    with server_for(tmp_path) as (server, client):
        client.load("m")
        client.load("neighbour")
        for worker in workers(server):
            status = dict(line.split(":", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines())
            assert status["NoNewPrivs"].strip() == "1"
            assert status["Seccomp"].strip() == "2"
            assert int(status["Seccomp_filters"]) > int(
                next(
                    line.split()[1]
                    for line in Path(f"/proc/{worker.ppid()}/status").read_text().splitlines()
                    if line.startswith("Seccomp_filters")
                )
            )
            assert {key.split("=")[0] for key in worker.environ()} == {"LD_LIBRARY_PATH", "OMP_NUM_THREADS"}
