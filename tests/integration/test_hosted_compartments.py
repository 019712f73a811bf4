"""Models with texts, images or states have processes of their own: a neighbour does not notice their end.

They run in Triton's Python backend, which starts nothing again by itself.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.machine.quarantine import crashed
from shiplift.runtime.serving.machine.server import Server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.spec.serving_settings import SequenceBatching, Serving
from tests.integration import runaway
from tests.integration.backends import ask, put, put_files, server_for, two_by_two
from tests.integration.conftest import until
from tests.integration.test_compartments import dividing, hungry, of, steady

pytestmark = [pytest.mark.integration, pytest.mark.slow]
LOWEST = -(2**31)
NOW = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}


def with_state(model: Any, datatype: int) -> Any:
    """The same model with a state, which it returns unchanged: such models run in Python."""
    from onnx import helper

    shape = ["n", 1]
    model.graph.input.append(helper.make_tensor_value_info("state", datatype, shape))
    model.graph.output.append(helper.make_tensor_value_info("next_state", datatype, shape))
    model.graph.node.append(helper.make_node("Identity", ["state"], ["next_state"]))
    return model


def put_hosted(work: Path, model: Any, name: str = "m", **limits: str) -> None:
    """Adds a model with a state to the server's repository."""
    states = SequenceBatching(states={"state": "next_state"})
    whole = signature_of(model)
    signature = Signature(inputs=whole.inputs[:-1], outputs=whole.outputs[:-1])
    folder = work / f"{name}-onnx"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    described = Serving(warmup=False, sequence_batching=states, request_timeout_s=1)
    put_files(work, folder, signature, name, settings=limits, serving=described)


@contextmanager
def serving(work: Path, model: Any, **limits: str) -> Iterator[tuple[Server, TritonClient, list[str]]]:
    """A server with the model as `m`, and a neighbour under traffic, with the errors that its clients see."""
    put_hosted(work, model, **limits)
    put(work, two_by_two(), "neighbour")
    with server_for(work) as (server, client):
        client.load("neighbour")
        with steady(server) as failures:
            yield server, client, failures


def workers(server: Server) -> list[psutil.Process]:
    family = psutil.Process(server.process.pid).children(recursive=True)
    return [each for each in family if any(word.endswith("python_host/worker.py") for word in words_of(each))]


def words_of(process: psutil.Process) -> list[str]:
    """A process's command line; empty once it has ended."""
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def told(server: Server, inputs: dict[str, Any]) -> str:
    """Why `m` does not answer."""
    with pytest.raises(InferenceServerException) as caught:
        ask(server, inputs, options=NOW)
    return str(caught.value.message())


def answered(server: Server, inputs: dict[str, Any]) -> Any:
    """The answer of `m`, once its process is back."""

    def once() -> Any:
        try:
            return ask(server, inputs, options=NOW).as_numpy("y").tolist()
        except InferenceServerException as error:
            if "the model's" in str(error):
                return None
            raise

    return until(once, seconds=30)


def test_a_process_that_is_killed_comes_back_and_is_quarantined_after_three_crashes(tmp_path: Path) -> None:
    with serving(tmp_path, with_state(dividing(), 6)) as (server, client, failures):
        client.load("m")
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL):
            assert answered(server, of(7, 4)) == [[3]]
            os.kill(workers(server)[0].pid, number)
            assert until(lambda: not workers(server))
            assert number.name in told(server, of(7, 4))
            until(lambda: "it starts again in" in told(server, of(7, 4)))
        (found,) = crashed(server.process.pid)
        assert found.finding(time.time()).startswith("quarantined: crashed 3 times, it starts again in")
        assert failures == []
        client.unload("m")
        assert until(lambda: crashed(server.process.pid) == ())


def test_a_magic_request_is_refused_after_the_second_crash(tmp_path: Path) -> None:
    with serving(tmp_path, with_state(dividing(), 6)) as (server, client, failures):
        client.load("m")
        for _ in range(2):
            assert answered(server, of(7, 4)) == [[3]]
            assert "died of SIGFPE" in told(server, of(LOWEST, -1))
        assert answered(server, of(7, 4)) == [[3]]
        assert "died each time it ran this request" in told(server, of(LOWEST, -1))
        assert answered(server, of(9, 4)) == [[1]]
        assert failures == []


def test_memory_past_the_limit_fails_the_request_and_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path, with_state(hungry(), 1), memory_mb="512") as (server, client, failures):
        client.load("m")
        one = np.ones((1, 1), np.float32)
        assert told(server, {"x": one, "n": np.array([[2**29]], np.int64)})
        assert answered(server, {"x": one, "n": np.array([[10]], np.int64)}) == [[1.0]]
        assert failures == []


@pytest.mark.parametrize(
    ("model", "limits", "why"),
    [
        (runaway.looping, {}, "stopped after 1 s, its limit (serving.request_timeout_s"),
        (runaway.endless, {}, "stopped after 1 s, its limit (serving.request_timeout_s"),
        (runaway.looping, {"cpu_time_ms": "200"}, "stopped after 0.2 s of CPU time, its limit (serving.limits.cpu_s"),
    ],
)
def test_a_request_that_never_ends_is_stopped(tmp_path: Path, model: Any, limits: dict[str, str], why: str) -> None:
    with serving(tmp_path, with_state(model(), 1), **limits) as (server, client, failures):
        client.load("m")
        assert why in told(server, {"x": np.array([[runaway.MAGIC]], np.float32)})
        assert answered(server, {"x": np.array([[3]], np.float32)}) == [[3.0]]
        assert failures == []


@pytest.mark.parametrize(("limit", "value"), [("memory_mb", "1"), ("max_threads", "1")])
def test_a_process_beyond_its_limits_is_ended_between_requests_and_says_which(
    tmp_path: Path, limit: str, value: str
) -> None:
    with serving(tmp_path, with_state(dividing(), 6), **{limit: value}) as (server, client, failures):
        with suppress(ServerFailed):  # it may be ended before it has loaded the model
            client.load("m")
            assert until(lambda: not workers(server))
            assert re.search(rf"worker (used|had) \d+ (MiB|threads), the limit is {value}", told(server, of(7, 4)))
        assert failures == []


def first(work: Path, code: str, name: str = "m") -> None:
    """Lets a model's process run code before it loads the model: the process belongs to whoever took it over."""
    folder = work / "models" / name / "1"
    (folder / "inner.py").rename(folder / "model_code.py")
    (folder / "inner.py").write_text(f"{code}from model_code import TritonPythonModel\n")


def test_a_load_that_hangs_ends_at_its_limit(tmp_path: Path) -> None:
    with serving(tmp_path, with_state(dividing(), 6), load_timeout_ms="2000") as (server, client, failures):
        first(tmp_path, "import time\ntime.sleep(600)\n")
        with pytest.raises(ServerFailed, match="loading the model was stopped after 2 s, its limit"):
            client.load("m")
        assert workers(server) == []
        assert failures == []


def test_a_process_has_no_network_no_programs_and_reads_no_other_model(tmp_path: Path) -> None:
    """The attacks on a Python model's process hold here, too: it is the same code that confines it."""
    attack = (
        "import os, socket\nfound = []\n"
        "def tries(what):\n    try:\n        what()\n        found.append(1)\n    except OSError:\n        pass\n"
        "tries(lambda: os.fork() or os._exit(0))\ntries(lambda: os.listdir('/proc'))\n"
        "tries(lambda: socket.socket())\ntries(lambda: os.kill(os.getppid(), 0))\n"
        "tries(lambda: open('/tmp/file', 'w'))\n"
        "tries(lambda: os.listdir(__file__.rpartition('/m/')[0] + '/neighbour'))\n"
        "tries(lambda: [open('/dev/null') for _ in range(70)])\n"
        "assert not found, found\n"
    )
    with serving(tmp_path, with_state(dividing(), 6), max_open_files="64") as (server, client, failures):
        first(tmp_path, attack)
        client.load("m")
        assert answered(server, of(7, 4)) == [[3]]
        assert failures == []
