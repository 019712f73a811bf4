"""One server with models of every family that hosts Python: a fault in one costs none of the others a request.

A model's code has been taken over: it does what a file beside it says. `test_compartments.py` is about graphs, which
have workers of their own, and `test_generation_compartment.py` about engines that generate text.
"""

import io
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import InferenceServerException

from shiplift.pipelines.daemons.prober import Prober
from shiplift.pipelines.daemons.server_watchdog import ServerWatchdog
from shiplift.pipelines.engines.local import incidents, stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.composition.check import check
from shiplift.runtime.model.python.bundle import write_bundle as write_host
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.bundles.decoders import members_of
from shiplift.runtime.serving.bundles.repository import write_bundle
from shiplift.runtime.serving.machine.hosts import running as stubs
from shiplift.runtime.serving.machine.quarantine import QUARANTINED, crashed
from shiplift.runtime.serving.machine.server import Server
from shiplift.runtime.serving.packaging.python_backend import PYTHON_MODEL, write_settings
from shiplift.runtime.serving.triton.config import parse, render
from shiplift.runtime.serving.triton.repository import install_all
from shiplift.runtime.spec import pipeline
from tests.integration.backends import ENVIRONMENT, ask, put, server_for, two_by_two
from tests.integration.conftest import until
from tests.integration.test_compartments import ROW, dividing, of
from tests.integration.test_fronts_for_nvidia import IMAGES, Images, Texts
from tests.integration.test_hosted_compartments import NOW, put_hosted, with_state
from tests.integration.test_pipelines_of_models import SEEN, Shelf, of_pixels, request, times
from tests.unit.examples import tensor
from tests.unit.steps.test_package_text import offered

pytestmark = pytest.mark.integration
MEMORY_MB, LIMIT_S = 400, 3
TAKEN_OVER = """
import os, time
def obey(folder):
    try:
        with open(os.path.join(folder, "fault")) as file:
            what = file.read()
    except OSError:
        return
    if what == "crash":
        os.abort()
    if what == "memory":
        kept = [bytearray(16 << 20) for _ in range(30)]
    if what in ("memory", "hang"):
        time.sleep(600)
"""
HOSTED = """
from model_code import TritonPythonModel as Own
class TritonPythonModel(Own):
    def execute(self, requests):
        obey(os.path.dirname(__file__))
        return super().execute(requests)
"""
AUTHORS = """
def load(settings):
    return Model(settings["model"])
class Model:
    def __init__(self, folder):
        self.folder = folder
    def answer(self, arrays, **_):
        obey(self.folder)
        return {"y": 2 * arrays["x"]}
"""
STEP = """
def work(x):
    obey(os.path.dirname(__file__))
    return {"y": 2 * x}
"""
STEPS = f"""
name: steps
admission: {{python: sandbox, memory_mb: {MEMORY_MB}}}
timeout_s: {2 * LIMIT_S}
workers: 1
inputs: {{x: {{datatype: FP32, shape: [-1, 4]}}}}
outputs: {{y: {{datatype: FP32, shape: [-1, 4]}}, four: {{datatype: FP32, shape: [-1, 4]}}}}
members: {{two: {{model: two}}}}
steps:
  work: {{python: work.py, inputs: {{x: x}}, outputs: {{y: {{datatype: FP32, shape: [-1, 4]}}}}, timeout_s: {LIMIT_S}}}
  twice: {{member: two, inputs: {{x: y}}, outputs: {{y: four}}}}
"""
ROWS = np.ones((1, 4), np.float32)
# What is told of a fault: of a request that did not end, of memory either by Python or by whoever looks at it.
FAULTS = {
    "crash": r"died of SIGABRT|its process ended with -6",
    "memory": rf"MemoryError|the limit is {MEMORY_MB} MiB",
    "hang": rf"after {LIMIT_S} s, its limit",
}


EVERYDAY = {("python", "crash"), ("python", "memory"), ("text", "crash"), ("image", "crash"), ("step", "hang")}


@dataclass(frozen=True)
class Family:
    """A model: where its code looks for what to do, its names in the server, and whether it answers right."""

    folder: Path
    names: frozenset[str]
    answers: Callable[[], bool]


def limited(config: Path) -> None:
    """Lets a model use so much memory, and take so long for a request."""
    changed = parse(config.read_text())
    for key, value in {"memory_mb": str(MEMORY_MB), "request_timeout_ms": str(LIMIT_S * 1000)}.items():
        changed.parameters[key].string_value = value
    config.write_text(render(changed))


def put_python(work: Path) -> Path:
    """A Python model, whose environment is the server's own; returns where its code is."""
    version = work / "models" / "python" / "1"
    version.mkdir(parents=True)
    author = work / "author.py"
    author.write_text(TAKEN_OVER + AUTHORS)
    write_host(version, author)
    (version / "model.py").write_bytes(PYTHON_MODEL.read_bytes())
    (version / "mlflow").mkdir()
    signature = Signature(inputs=(tensor("x", -1, 4),), outputs=(tensor("y", -1, 4),))
    write_settings(version, signature, f"../{ENVIRONMENT.root.name}", MEMORY_MB)
    config = pb.ModelConfig(name="python", backend="python", max_batch_size=8)
    config.input.add(name="x", data_type=pb.TYPE_FP32, dims=[4])
    config.output.add(name="y", data_type=pb.TYPE_FP32, dims=[4])
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    (version.parent / "config.pbtxt").write_text(render(config))
    limited(version.parent / "config.pbtxt")
    return version / "mlflow"


def put_front(work: Path, name: str, kind: type[Texts]) -> Path:
    """A model of texts or images, as a release packages it."""
    home = work / f"{name}-home"
    home.mkdir()
    bench = kind(home)
    (package,) = bench.package(offered(bench)).packages
    tree = bench.store.fetch(package.repository, work / f"{name}-tree")
    install_all(tree, work / "models", source=serving_name(package.model), name=name)
    (inner,) = (work / "models" / name).glob("*/inner.py")
    inner.rename(inner.with_name("model_code.py"))
    inner.write_text(TAKEN_OVER + HOSTED)
    limited(work / "models" / name / "config.pbtxt")
    return inner.parent


def put_bundle(work: Path, text: str, members: dict[str, Package], sources: dict[str, str]) -> list[str]:
    """A pipeline of models; returns the names of its models in the server, members first."""
    files = {path: source.encode() for path, source in sources.items()}
    definition = pipeline.parse(text)
    checked = check(definition, members, files)
    assert checked.problems == ()
    bundle = work / f"{checked.name}-bundle"
    names = list(write_bundle(bundle, definition.spec, checked, files, Shelf(work).store))
    for folder in bundle.iterdir():
        folder.rename(work / "models" / folder.name)
    return names


def picture() -> Any:
    body = io.BytesIO()
    Image.new("RGB", (20, 20), "white").save(body, "JPEG")
    return np.frombuffer(body.getvalue(), np.uint8)[None]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, Family]]]:
    """A server with one model of each family."""
    pytest.importorskip("tokenizers")
    home = tmp_path_factory.mktemp("neighbours")
    work = home / "production"
    work.mkdir()
    put(work, two_by_two(), "graph")
    folders = {"python": put_python(work), "text": put_front(work, "text", Texts)}
    folders["image"] = put_front(work, "image", Images)
    shelf = Shelf(work)
    steps = put_bundle(work, STEPS, {"two": shelf.put("two", times(2))}, {"work.py": TAKEN_OVER + STEP})
    (pool,) = [name for name in steps if (work / "models" / name / "1" / "pool.json").exists()]
    folders["step"] = work / "models" / pool / "1" / "python"
    pixels, definition = shelf.put("mean", of_pixels()), pipeline.parse(SEEN).spec
    found = members_of(definition, lambda _: pixels, shelf.store)
    seen = put_bundle(work, SEEN, {name: each for name, each in found.items() if isinstance(each, Package)}, {})
    put_hosted(work, with_state(dividing(), 6), "sequence")
    with server_for(work) as (server, client):
        for name in ("graph", "sequence", "python", "text", "image", *steps, *seen):
            client.load(name)
        text, photo = np.array([["a good film"]], object), picture()
        asking: dict[str, Callable[[], bool]] = {
            "graph": lambda: ask(server, ROW, name="graph").as_numpy("sum").tolist() == [[2.0, 2.0]],
            "python": lambda: ask(server, {"x": ROWS}, name="python").as_numpy("y").tolist() == [[2.0] * 4],
            "text": lambda: ask(server, {"input": text}, name="text").as_numpy("label").shape[0] == 1,
            "image": lambda: (
                ask(server, {"input": np.array([[IMAGES[0]]], object)}, name="image").as_numpy("label").shape == (1, 2)
            ),
            "step": lambda: request(server, "steps", {"x": ROWS})["four"].tolist() == [[4.0] * 4],
            "decoder": lambda: request(server, "seen", {"photo": photo})["mean"].shape == (1, 3),
            "sequence": lambda: ask(server, of(7, 4), name="sequence", options=NOW).as_numpy("y").tolist() == [[3]],
        }
        names = {"step": frozenset(steps), "decoder": frozenset(seen)}
        yield (
            server,
            {
                name: Family(folders.get(name, work), names.get(name, frozenset({name})), answers)
                for name, answers in asking.items()
            },
        )


@contextmanager
def under_traffic(families: dict[str, Family]) -> Iterator[list[str]]:
    """Traffic of these models: the errors of their requests, which must stay empty."""
    failures: list[str] = []
    ends = threading.Event()

    def send(name: str, family: Family, answered: threading.Event) -> None:
        while not ends.is_set():
            try:
                assert family.answers()
            except (InferenceServerException, AssertionError) as error:
                failures.append(f"{name}: {error}")
            answered.set()
            ends.wait(0.02)

    with ExitStack() as stack:
        begun = []
        for name, family in families.items():
            begun.append(threading.Event())
            thread = threading.Thread(target=send, args=(name, family, begun[-1]))
            thread.start()
            stack.callback(thread.join)
        stack.callback(ends.set)
        assert all(answered.wait(20) for answered in begun)
        yield failures


def back(family: Family) -> bool:
    """Whether a model answers again, before the longest of three pauses is over."""

    return bool(until(lambda: back_now(family), seconds=30))


def back_now(family: Family) -> bool:
    """Whether a model answers."""
    try:
        return family.answers()
    except InferenceServerException:
        return False


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, marks=[pytest.mark.slow] if (name, fault) not in EVERYDAY else [])
        for name in ("python", "text", "image", "step")
        for fault in FAULTS
    ],
)
def test_a_fault_costs_no_neighbour_a_request_and_the_model_comes_back_or_says_why(
    served: tuple[Server, dict[str, Family]], name: str, fault: str
) -> None:
    server, families = served
    family, others = families[name], {other: each for other, each in families.items() if other != name}
    assert back(family)
    with under_traffic(others) as failures:
        order = family.folder / "fault"
        order.write_text(fault)
        with pytest.raises(InferenceServerException) as caught:
            family.answers()
        order.unlink()
        assert re.search(FAULTS[fault], str(caught.value.message()))
        assert back(family)
        assert failures == []
    found = [each for each in crashed(server.process.pid) if each.model in family.names]
    assert found or fault == "memory"  # Python may have refused the memory
    for each in found:
        assert re.search("|".join(FAULTS.values()), each.why)
        assert each.finding(time.time()).startswith("quarantined: ") is (each.crashes >= QUARANTINED)


class Silent(Prober):
    """Asks nothing, so that only what the watchdog sees of the processes counts."""

    def look(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(name, model, marks=[] if name == "decoder" else [pytest.mark.slow], id=model)
        for name, model in [
            ("decoder", "image.*-1--.*"),  # the member that decodes images
            ("decoder", "seen-bundle--.*"),  # the witness of an ensemble
            ("step", "steps"),  # a pipeline that calls its members
            ("step", "steps-python--.*"),  # the author's steps
            ("sequence", "sequence"),
            ("python", "python"),
            ("text", "text"),
            ("image", "image"),
        ]
    ],
)
def test_a_stub_that_is_killed_comes_back_with_its_model_alone(
    served: tuple[Server, dict[str, Family]], name: str, model: str
) -> None:
    server, families = served
    family, others = families[name], {other: each for other, each in families.items() if other != name}
    home = server.repository.parents[1]

    def looked(model: str) -> list[str]:
        """What the watchdog has noted of a model since this test began, after another look."""
        watchdog.look()
        return [each.event for each in incidents.recent(home)[before:] if each.model == model]

    ports = {"http_port": server.ports.http, "grpc_port": server.ports.grpc, "metrics_port": server.ports.metrics}
    running = stack._new(Settings(home=home, free_ports=True))
    changes = {**ports, "processes": {"triton": server.process}}
    write_atomically(home / "stack.json", running.model_copy(update=changes).model_dump_json())
    watchdog = ServerWatchdog(home, prober=Silent(home))
    assert back(family)
    watchdog.look()
    before = len(incidents.recent(home))  # of the tests before this one, which let models crash
    (pid, *_), found = zip(
        *((pid, each) for pid, each in stubs(server.process.pid) if re.fullmatch(model, each)), strict=True
    )
    with under_traffic(others) as failures:
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: len(looked(found[0])) == 2, seconds=60)
        assert back(family)
        assert all(family.answers() for _ in range(5))  # by each instance
        assert failures == []
    died, loaded = looked(found[0])
    assert died == "its process in Triton's Python backend died of SIGKILL, crash 1 in a row: it waits 1 s"
    assert re.fullmatch("it was loaded again, and was whole after [0-9]+ s", loaded)
    assert not any("restarted" in each.event for each in incidents.recent(home)[before:])
