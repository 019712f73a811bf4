"""Production's server starts with whatever it can serve: a slow or broken model keeps no other away."""

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.host.processes import free_port, stop
from shiplift.runtime.serving.machine.loading import Attempts, Loader, attempts
from shiplift.runtime.serving.machine.server import Server, start_production
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features, Ports
from shiplift.runtime.spec.serving_settings import Serving
from tests.integration.backends import ENVIRONMENT, ask, put, two_by_two, unbatched
from tests.integration.conftest import until
from tests.integration.test_compartments import dividing, steady
from tests.integration.test_hosted_compartments import first, put_hosted, with_state

pytestmark = pytest.mark.integration
HEALTHY = tuple(f"healthy{number}" for number in range(17))
ROW = {"a": np.ones((1, 2), np.float32), "b": np.ones((1, 1), np.float32)}
LATE = "time.sleep(60)"
RAISES = "raise RuntimeError('its loading fails since today')"
DIES = "os.kill(os.getpid(), signal.SIGSEGV)"
IN_PROCESS = {
    "crashes": "import os\nos.abort()\n",
    "hangs": "import time\ntime.sleep(600)\n",
    "eats": "kept = [bytearray(16 << 20) for _ in range(10**6)]\n",
}
TENSOR = "{{ name: '{}' data_type: TYPE_FP32 dims: [1] }}"


def put_python(repository: Path, name: str, loading: str) -> None:
    """Adds a model of the Python backend, which does `loading` first."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(
        "import os, signal, time\n"
        f"class TritonPythonModel:\n    def initialize(self, _):\n        {loading}\n"
        "    def execute(self, requests):\n        return []\n"
    )
    tensors = f"input [{TENSOR.format('x')}] output [{TENSOR.format('y')}]"
    sample = "inputs { key: 'x' value { data_type: TYPE_FP32 dims: 1 zero_data: true } }"
    warm_up = f"model_warmup [{{ name: 'w' batch_size: 1 {sample} }}]"  # it fails, because nothing is answered
    (repository / name / "config.pbtxt").write_text(f"name: '{name}' backend: 'python' {tensors} {warm_up}")


@contextmanager
def production(work: Path) -> Iterator[Server]:
    """Production's server over `work`/models."""
    ports = Ports(http=free_port(), grpc=free_port(), metrics=free_port())
    server = start_production(ENVIRONMENT, work / "models", ports, Features(cache_mb=0), log=work / "log")
    try:
        yield server
    finally:
        stop(server.process, grace_s=1)


@pytest.mark.slow
def test_of_twenty_models_those_that_are_not_broken_serve_within_30_s(tmp_path: Path) -> None:
    """Those in processes of their own that crash, hang or eat memory as they load, and those of Triton's that do."""
    for name in HEALTHY:
        put(tmp_path, two_by_two(), name)
    for name, loading in IN_PROCESS.items():
        put_hosted(tmp_path, with_state(dividing(), 6), name, memory_mb="300")
        first(tmp_path, loading, name)
    for name, loading in {"late": LATE, "raises": RAISES, "dies": DIES}.items():
        put_python(tmp_path / "models", name, loading)
    for start in (1, 2):  # at first nobody knows which ones are broken
        began = time.monotonic()
        with production(tmp_path) as server:
            assert time.monotonic() - began < 30
            assert all(ask(server, ROW, name=name).as_numpy("sum").tolist() == [[2.0, 2.0]] for name in HEALTHY)
            for name in ("crashes", "eats", "raises", "dies"):
                assert until(lambda n=name, at=start: attempts(tmp_path)[n].failures >= at)  # type: ignore[misc]
    failed = attempts(tmp_path)
    assert "died of SIGABRT" in failed["crashes"].why
    assert re.search("the limit is 300 MiB|MemoryError", failed["eats"].why)
    assert "its loading fails since today" in failed["raises"].why
    assert failed["hangs"].failures == 2


@pytest.mark.parametrize("backend", ["python", "onnxruntime"])
def test_a_model_whose_warm_up_fails_is_tried_again_without_it(tmp_path: Path, backend: str) -> None:
    """It passed its release; the server and the others go on."""
    if backend == "python":
        put_python(tmp_path / "models", "m", "pass")
    else:
        put(tmp_path, unbatched(), serving=Serving(), example={"x": np.ones((1, 3), np.float32)})
    put(tmp_path, two_by_two(), "neighbour")
    with (
        production(tmp_path) as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
        steady(server) as failures,
    ):
        assert "failed to run warmup sample" in attempts(tmp_path)["m"].why
        now = attempts(tmp_path)["m"].next_at + 0.5
        with closing(Loader(server.repository, server.grpc, clock=lambda: now)) as loader:
            assert loader.look() == {"m"}
            loader.wait(20)
            assert until(lambda: not loader.look())
        assert client.ready("m")
        assert attempts(tmp_path)["m"].failures == 0
        assert failures == []


def test_a_model_that_failed_is_tried_again_after_its_pause(tmp_path: Path) -> None:
    put_python(tmp_path / "models", "m", RAISES)
    with production(tmp_path) as server:
        now = attempts(tmp_path)["m"].next_at - 0.5
        loader = Loader(server.repository, server.grpc, clock=lambda: now)
        assert loader.look() == {"m"}
        assert attempts(tmp_path)["m"].failures == 1  # its pause is not over
        (tmp_path / "models" / "m" / "1" / "model.py").unlink()
        put(tmp_path, two_by_two(), "m")
        now += 1
        assert until(lambda: not loader.look())
        loader.wait(5)
        assert attempts(tmp_path)["m"].failures == 0
        with TritonClient(server.grpc, repository_key=server.key) as client:
            assert client.ready("m")
        (tmp_path / "loading.json").write_text(f'{{"m": {Attempts(failures=3, why="no file").model_dump_json()}}}')
        assert not loader.look()
        assert attempts(tmp_path)["m"] == Attempts()  # somebody else loaded it
        loader.close()
