"""Pipelines of models on the real bundled Triton: what is checked and built here answers as its members do by hand."""

import io
import itertools
import os
import shutil
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ArtifactCorrupt, ServerFailed, UsageError
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.package import GraphPackage, Package
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.serving.bundles.decoders import members_of
from shiplift.runtime.serving.bundles.names import members_by_name
from shiplift.runtime.serving.bundles.repository import write_bundle
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.repository import install, write_package
from shiplift.runtime.spec.pipeline import parse
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.integration.backends import ENVIRONMENT, NAMES, lookup, model
from tests.integration.conftest import until
from tests.unit.examples import endless

pytestmark = pytest.mark.integration
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


# --- members ---------------------------------------------------------------------------------------------------


def times(factor: float) -> Any:
    """y = factor x, for rows of four."""
    constant = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    return model(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [("x", "FP32", ["n", 4])],
        [("y", "FP32", ["n", 4])],
        (constant,),
    )


def largest() -> Any:
    """The largest number of each row of four, one per sample."""
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    node = helper.make_node("ReduceMax", ["x", "axes"], ["top"], keepdims=0)
    return model([node], [("x", "FP32", ["n", 4])], [("top", "FP32", ["n"])], (axes,))


@dataclass
class Shelf:
    """Packages that were stored as a release stores them."""

    folder: Path

    @property
    def store(self) -> ArtifactStore:
        return ArtifactStore((self.folder / "artifacts").as_uri())

    def put(
        self,
        name: str,
        onnx_model: Any,
        *,
        version: int = 1,
        max_batch: int = 4,
        limit_s: float = 30,
        golden: Arrays | None = None,
    ) -> Package:
        work = self.folder / f"{name}-{version}"
        (work / "onnx").mkdir(parents=True)
        (work / "package").mkdir()
        (work / "onnx" / "model.onnx").write_bytes(onnx_model.SerializeToString())
        config = ServingConfig(max_batch=max_batch, queue_delay_us=0, instances=1, threads=1)
        described = ModelDescription(
            name=name,
            version=version,
            signature=signature_of(onnx_model),
            config=config,
            serving=Serving(warmup=False, request_timeout_s=limit_s),
        )
        tree = write_package(work / "package", described, work / "onnx", "bundled", example={}, golden=golden or {})
        return GraphPackage(
            target="local-cpu",
            server="bundled",
            model=name,
            version=version,
            precision="fp32",
            config=config,
            repository=self.store.put_tree(tree),
            signature=described.signature,
        )


# --- serving ---------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A pipeline that is served, and what its clients do with it."""

    server: Server
    client: TritonClient
    checked: CheckedPipeline

    def ask(self, only: list[str] | None = None, name: str = "", **arrays: Any) -> dict[str, Any]:
        return request(self.server, name or self.checked.name, arrays, only)

    def member(self, name: str) -> str:
        """A member's name in the server, by the pipeline's."""
        wanted = next(member.package for member in self.checked.members if member.name == name)
        return next(served for served, package in members_by_name(self.checked).items() if package == wanted)

    def executions(self, member: str, at_least: int = 0) -> tuple[int, int]:
        """How many requests a member answered, and how many rows they had; Triton counts after it has answered."""
        client = grpc.InferenceServerClient(self.server.grpc)

        def counted() -> tuple[int, int] | None:
            stats = client.get_inference_statistics(self.member(member)).model_stats[0]
            requests = stats.inference_stats.success.count
            return (requests, stats.inference_count) if requests >= at_least else None

        counts: tuple[int, int] = until(counted)
        return counts


def request(server: Server, name: str, arrays: Mapping[str, Any], only: list[str] | None = None) -> dict[str, Any]:
    inputs = []
    for key, array in arrays.items():
        inputs.append(grpc.InferInput(key, list(array.shape), NAMES[array.dtype]))
        inputs[-1].set_data_from_numpy(array)
    outputs = [grpc.InferRequestedOutput(name) for name in only] if only else None
    result = grpc.InferenceServerClient(server.grpc).infer(name, inputs, outputs=outputs, client_timeout=60)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def sound(text: str, packages: Mapping[str, Package], sources: Mapping[str, str]) -> CheckedPipeline:
    checked = check(parse(text), packages, {path: source.encode() for path, source in sources.items()})
    assert checked.problems == ()
    return checked


def load(client: TritonClient, models: Mapping[str, str]) -> None:
    """Loads a bundle as whoever releases it will: members first, which is their order in the bundle."""
    for name in models:
        client.load(name)


@contextmanager
def served(
    shelf: Shelf, text: str, packages: Mapping[str, Package], sources: Mapping[str, str] | None = None
) -> Iterator[Served]:
    checked = sound(text, packages, sources or {})
    repository = shelf.folder / "bundle"
    files = {path: source.encode() for path, source in (sources or {}).items()}
    models = write_bundle(repository, parse(text).spec, checked, files, shelf.store)
    with (
        private_server(ENVIRONMENT, repository, Features(cache_mb=0), log=shelf.folder / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        load(client, models)
        yield Served(server, client, checked)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """As in an activated virtual environment, whose Python the server must not take for its own."""
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    return Shelf(tmp_path)


# --- ensembles -------------------------------------------------------------------------------------------------

CHAIN = """
name: chain
inputs: {x: {datatype: FP32, shape: [-1, 4]}}
outputs: {six: {datatype: FP32, shape: [-1, 4]}, top: {datatype: FP32, shape: [-1, 1]}}
members: {two: {model: two}, three: {model: three}, top: {model: top}}
steps:
  best: {member: top, inputs: {x: six}, outputs: {top: top}}
  second: {member: three, inputs: {x: double}, outputs: {y: six}}
  first: {member: two, inputs: {x: x}, outputs: {y: double}}
"""


def test_an_ensemble_answers_as_its_members_do_by_hand(shelf: Shelf) -> None:
    packages = {
        "two": shelf.put("two", times(2)),
        "three": shelf.put("three", times(3)),
        "top": shelf.put("top", largest()),
    }
    with served(shelf, CHAIN, packages) as pipeline:
        assert pipeline.checked.way == "ensemble"
        answer = pipeline.ask(x=ROWS)
        double = pipeline.ask(name=pipeline.member("two"), x=ROWS)["y"]
        six = pipeline.ask(name=pipeline.member("three"), x=double)["y"]
        np.testing.assert_array_equal(answer["six"], six)
        np.testing.assert_array_equal(answer["top"], pipeline.ask(name=pipeline.member("top"), x=six)["top"])
        assert answer["bundle"].tolist() == [pipeline.checked.digest.encode()]
        for count in (1, 2, 3):
            for names in itertools.combinations(("six", "top", "bundle"), count):
                some = pipeline.ask(list(names), x=ROWS)
                assert some.keys() == set(names)
                for name in names:
                    np.testing.assert_array_equal(some[name], answer[name])
        with pytest.raises(InferenceServerException, match="batch-size must be <= 4"):
            pipeline.ask(x=np.zeros((5, 4), np.float32))


def test_two_bundles_load_beside_each_other_and_share_no_model(shelf: Shelf, tmp_path: Path) -> None:
    """The old bundle answers while the new one is loaded, and after that is gone again."""
    old = {"two": shelf.put("two", times(2)), "three": shelf.put("three", times(3)), "top": shelf.put("top", largest())}
    new = {**old, "two": shelf.put("two", times(20), version=2)}
    with served(shelf, CHAIN, old) as pipeline:
        text = CHAIN.replace("name: chain", "name: chain-next")
        checked = sound(text, new, {})
        models = write_bundle(tmp_path / "next", parse(text).spec, checked, {}, shelf.store)
        assert not set(models) & set(members_by_name(pipeline.checked))
        for folder in (tmp_path / "next").iterdir():
            folder.rename(pipeline.server.repository / folder.name)
        load(pipeline.client, models)
        np.testing.assert_array_equal(pipeline.ask(name="chain-next", x=ROWS)["six"], 60 * ROWS)
        np.testing.assert_array_equal(pipeline.ask(x=ROWS)["six"], 6 * ROWS)
        for name in reversed(models):
            pipeline.client.unload(name)
        np.testing.assert_array_equal(pipeline.ask(x=ROWS)["six"], 6 * ROWS)


@dataclass
class Clients:
    """Clients that ask a pipeline until they are stopped, and check each answer against the bundle that it names."""

    pipeline: Served
    factors: Mapping[str, tuple[float, float]]  # of `six` and of `top`, by the bundle's digest
    stopped: threading.Event = field(default_factory=threading.Event)

    def ask(self, _: int) -> Counter[str]:
        """How many answers each bundle gave."""
        seen: Counter[str] = Counter()
        while not self.stopped.is_set():
            answer = self.pipeline.ask(x=ROWS)
            digest = answer["bundle"][0].decode()
            six, top = self.factors[digest]
            np.testing.assert_array_equal(answer["six"], six * ROWS)
            np.testing.assert_array_equal(answer["top"][:, 0], top * ROWS.max(axis=1))
            seen[digest] += 1
        return seen


def beside(pipeline: Served, bundle: Path, models: Mapping[str, str]) -> None:
    """Loads the members of another bundle of the same pipeline."""
    for name in models:
        if name != pipeline.checked.name:
            (bundle / name).rename(pipeline.server.repository / name)
            pipeline.client.load(name)


@pytest.mark.parametrize("way", ["ensemble", "bls"])
def test_a_switch_of_bundles_under_load_mixes_no_answers(shelf: Shelf, tmp_path: Path, way: str) -> None:
    """The served name is moved to and fro; each answer is as a whole that of the bundle that it names."""
    text = CHAIN if way == "ensemble" else CHAIN.replace("name: chain", "name: chain\ntimeout_s: 20")
    old = {"two": shelf.put("two", times(2)), "three": shelf.put("three", times(3)), "top": shelf.put("top", largest())}
    new = {**old, "two": shelf.put("two", times(20), version=2), "three": shelf.put("three", times(5), version=2)}
    with served(shelf, text, old) as pipeline:
        after = sound(text, new, {})
        models = write_bundle(tmp_path / "next", parse(text).spec, after, {}, shelf.store)
        shutil.copytree(pipeline.server.repository / "chain", tmp_path / "before" / "chain")
        beside(pipeline, tmp_path / "next", models)
        digests = {"next": after.digest, "before": pipeline.checked.digest}
        clients = Clients(pipeline, {digests["before"]: (6, 6), digests["next"]: (100, 100)})
        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(clients.ask, number) for number in range(4)]
            try:
                for turn in ("next", "before", "next"):
                    install(tmp_path / turn, pipeline.server.repository, source="chain", name="chain")
                    pipeline.client.load("chain")
                    assert pipeline.ask(x=ROWS)["bundle"].tolist() == [digests[turn].encode()]
            finally:
                clients.stopped.set()
            seen = sum((each.result() for each in asking), Counter())
        assert set(seen) == set(digests.values())


def test_a_bundle_is_whole_or_not_there(shelf: Shelf, tmp_path: Path) -> None:
    packages = {
        "two": shelf.put("two", times(2)),
        "three": shelf.put("three", times(3)),
        "top": shelf.put("top", largest()),
    }
    gone = packages["top"].repository.model_copy(update={"sha256": "0" * 64})
    packages["top"] = packages["top"].model_copy(update={"repository": gone})
    checked = sound(CHAIN, packages, {})
    with pytest.raises(ArtifactCorrupt):
        write_bundle(tmp_path / "out" / "bundle", parse(CHAIN).spec, checked, {}, shelf.store)
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "out" / "file").touch()
    with pytest.raises(UsageError, match="not an empty folder"):
        write_bundle(tmp_path / "out", parse(CHAIN).spec, checked, {}, shelf.store)


# --- conditions ------------------------------------------------------------------------------------------------

CASCADE = """
name: cascade
inputs: {x: {datatype: FP32, shape: [-1, 4]}}
outputs: {y: {datatype: FP32, shape: [-1, 4]}}
members: {cheap: {model: two}, sure: {model: top}, large: {model: three}}
steps:
  guess: {member: cheap, inputs: {x: x}, outputs: {y: quick}}
  trust: {member: sure, inputs: {x: x}, outputs: {top: confidence}}
  think:
    member: large
    inputs: {x: x}
    outputs: {y: y}
    when: {tensor: confidence, below: 10}
    otherwise: {y: quick}
"""


def test_a_cascade_asks_the_large_model_only_if_the_cheap_one_is_not_sure(shelf: Shelf) -> None:
    packages = {
        "cheap": shelf.put("two", times(2)),
        "sure": shelf.put("top", largest()),
        "large": shelf.put("three", times(3)),
    }
    with served(shelf, CASCADE, packages) as pipeline:
        assert pipeline.checked.way == "bls"
        easy, hard = ROWS + 20, ROWS
        np.testing.assert_array_equal(pipeline.ask(x=easy)["y"], 2 * easy)
        assert pipeline.executions("large") == (0, 0)
        np.testing.assert_array_equal(pipeline.ask(x=hard)["y"], 3 * hard)
        assert pipeline.executions("large", at_least=1) == (1, 2)
        assert pipeline.ask(x=hard)["bundle"].tolist() == [pipeline.checked.digest.encode()]
        assert pipeline.ask(["y"], x=hard).keys() == {"y"}
        assert pipeline.ask(["bundle"], x=hard).keys() == {"bundle"}  # no step is needed for it
        assert pipeline.executions("large", at_least=3)[0] == 3
        with pytest.raises(InferenceServerException, match=r"step think: .*confidence has NaN"):
            pipeline.ask(x=np.full((1, 4), np.nan, np.float32))
        with ThreadPoolExecutor(8) as pool:
            requests = [np.full((1, 4), number, np.float32) for number in range(200)]
            answers = list(pool.map(lambda x: pipeline.ask(x=x)["y"], requests))
        for x, answer in zip(requests, answers, strict=True):
            np.testing.assert_array_equal(answer, (3 if x.max() < 10 else 2) * x)


# --- loops -----------------------------------------------------------------------------------------------------

LOOP = """
name: loop
admission: {python: sandbox}
inputs: {count: {datatype: INT64, shape: [1]}}
outputs: {y: {datatype: FP32, shape: [-1, 4]}, label: {datatype: BYTES, shape: [1, 1]}}
members: {two: {model: two}}
steps:
  cut:
    python: cut.py
    inputs: {count: count}
    outputs: {rows: {datatype: FP32, shape: [-1, 4]}}
  each:
    member: two
    inputs: {x: rows}
    outputs: {y: y}
    for_each: {over: rows, max: 9}
  vote:
    python: vote.py
    function: best
    inputs: {y: y}
    outputs: {label: {datatype: BYTES, shape: [1, 1]}}
"""
CUT = """import numpy as np
def cut(count):
    return {"rows": np.arange(4 * count[0], dtype=np.float32).reshape(-1, 4)}
"""
VOTE = """import numpy as np
def best(y):
    return {"label": np.array([[f"{len(y)} rows, {y.sum():g}".encode()]], dtype=object)}
"""


def rows(count: int) -> Any:
    return np.arange(4 * count, dtype=np.float32).reshape(-1, 4)


def test_a_loop_asks_once_per_full_batch_for_as_many_rows_as_there_are(shelf: Shelf) -> None:
    with served(shelf, LOOP, {"two": shelf.put("two", times(2))}, {"cut.py": CUT, "vote.py": VOTE}) as pipeline:
        for count, requests in ((0, 0), (1, 1), (7, 2), (9, 3)):
            before, _ = pipeline.executions("two")
            answer = pipeline.ask(count=np.array([count]))
            np.testing.assert_array_equal(answer["y"], 2 * rows(count))
            assert answer["label"].tolist() == [[f"{count} rows, {2 * rows(count).sum():g}".encode()]]
            assert pipeline.executions("two", at_least=before + requests)[0] - before == requests
        for count in (10, 10_000):
            with pytest.raises(InferenceServerException, match=f"rows has {count} rows, the limit is 9"):
                pipeline.ask(count=np.array([count]))
        with ThreadPoolExecutor(6) as pool:
            counts = [number % 10 for number in range(60)]
            answers = list(pool.map(lambda count: pipeline.ask(count=np.array([count])), counts))
        for count, answer in zip(counts, answers, strict=True):
            np.testing.assert_array_equal(answer["y"], 2 * rows(count))


WRONG = [
    ("def cut(count): raise ValueError('no lines')", "step cut: ValueError: no lines"),
    ("def cut(count): return {'rows': [[1.0, 2, 3, 4]]}", r"it returned rows as FP64\[1, 4\], the pipeline says FP32"),
    ("def cut(count): return {'other': count}", r"it returned \['other'\], the pipeline says \['rows'\]"),
    ("def cut(count): return count", "it returned ndarray, not a dict"),
    ("def cut(count): return {'rows': [bytes(1 << 20) for _ in range(2000)]}", "step cut: MemoryError"),
    ("import os\ndef cut(count): os._exit(3)", "step cut: its process ended with 3"),
    ("import os\ndef cut(count): os.write(1, b'x' * 100); os._exit(0)", "step cut: its process ended"),
]


def test_python_that_fails_loses_its_request_alone(shelf: Shelf) -> None:
    """The function misbehaves for counts of 100 and more, each in its own way, and else answers."""
    body = "".join(f"{source.replace('def cut', f'def wrong_{at}')}\n" for at, (source, _) in enumerate(WRONG))
    body += CUT.replace("def cut", "def right")
    body += "def cut(count):\n    return globals().get(f'wrong_{int(count[0]) - 100}', right)(count)\n"
    text = LOOP.replace("name: loop", "name: loop\ninstances: 1")
    with served(shelf, text, {"two": shelf.put("two", times(2))}, {"cut.py": body, "vote.py": VOTE}) as pipeline:
        for at, (_, message) in enumerate(WRONG):
            for _ in range(2):
                with pytest.raises(InferenceServerException, match=message):
                    pipeline.ask(count=np.array([100 + at]))
                np.testing.assert_array_equal(pipeline.ask(count=np.array([2]))["y"], 2 * rows(2))


def test_python_that_does_not_end_is_killed(shelf: Shelf) -> None:
    body = "def wrong(count):\n    while True: pass\n" + CUT.replace("def cut", "def right")
    body += "def cut(count):\n    return wrong(count) if count[0] == 1 else right(count)\n"
    text = LOOP.replace("name: loop", "name: loop\ninstances: 1").replace(
        "python: cut.py", "python: cut.py\n    timeout_s: 0.5"
    )
    with served(shelf, text, {"two": shelf.put("two", times(2))}, {"cut.py": body, "vote.py": VOTE}) as pipeline:
        with pytest.raises(InferenceServerException, match=r"step cut: it has not ended after 0\.5 s, its limit"):
            pipeline.ask(count=np.array([1]))
        np.testing.assert_array_equal(pipeline.ask(count=np.array([2]))["y"], 2 * rows(2))


@pytest.mark.parametrize(
    ("source", "message"), [("def cut(count", "SyntaxError"), ("def cat(count): ...", "cut.py has no function 'cut'")]
)
def test_python_that_can_t_be_loaded_leaves_nothing_half_loaded(shelf: Shelf, source: str, message: str) -> None:
    with (
        pytest.raises(ServerFailed, match=message),
        served(shelf, LOOP, {"two": shelf.put("two", times(2))}, {"cut.py": source, "vote.py": VOTE}),
    ):
        pytest.fail("it was loaded")


def test_ten_thousand_rows_are_many_requests_and_one_answer(shelf: Shelf) -> None:
    text = LOOP.replace("max: 9", "max: 10000")
    packages = {"two": shelf.put("two", times(2), max_batch=64)}
    with served(shelf, text, packages, {"cut.py": CUT, "vote.py": VOTE}) as pipeline:
        np.testing.assert_array_equal(pipeline.ask(count=np.array([10_000]))["y"], 2 * rows(10_000))
        assert pipeline.executions("two", at_least=157)[0] == 157


def test_python_is_confined_and_gets_arrays_of_its_own(shelf: Shelf) -> None:
    """It reads no files but the server's, writes none, connects to nobody; and may change its inputs."""
    body = f"""import os, socket
import numpy as np
def tried(act):
    try:
        act()
    except OSError:
        return False
    return True
def cut(count):
    count[0] += 1
    acts = [lambda: open({str(Path(__file__))!r}), lambda: open(__file__, "a"),
            lambda: socket.create_connection(("127.0.0.1", PORT), timeout=1)]
    return {{"rows": np.full((count[0], 4), sum(map(tried, acts)), dtype=np.float32)}}
"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sources = {"cut.py": body.replace("PORT", str(listener.getsockname()[1])), "vote.py": VOTE}
        with served(shelf, LOOP, {"two": shelf.put("two", times(2))}, sources) as pipeline:
            np.testing.assert_array_equal(pipeline.ask(count=np.array([1]))["y"], np.zeros((2, 4)))


# --- workers ---------------------------------------------------------------------------------------------------

POOLED = """
name: pooled
admission: {python: sandbox}
instances: 4
workers: 2
inputs: {x: {datatype: FP32, shape: [-1, 4]}}
outputs:
  y: {datatype: FP32, shape: [-1, 4]}
  two: {datatype: FP32, shape: [1, 4]}
  worker: {datatype: INT64, shape: [1, 2]}
members: {two: {model: two}}
steps:
  work:
    python: work.py
    inputs: {x: x}
    outputs:
      y: {datatype: FP32, shape: [-1, 4]}
      first: {datatype: FP32, shape: [1, 4]}
      worker: {datatype: INT64, shape: [1, 2]}
  twice: {member: two, inputs: {x: first}, outputs: {y: two}}
"""
WORK = """import os, time
import numpy as np
def work(x):
    time.sleep(0.2)
    if x[0, 0] == 13:
        os._exit(1)
    shared = [name for name in os.listdir("/dev/shm") if name.startswith("shiplift-")]
    return {"y": -x, "first": x[:1], "worker": np.array([[os.getpid(), len(shared)]])}
"""


def test_workers_are_shared_by_all_instances_and_large_tensors_lie_in_shared_memory(shelf: Shelf) -> None:
    large = [np.full((1 << 18, 4), number, np.float32) for number in range(8)]  # 4 MiB each
    with (
        served(shelf, POOLED, {"two": shelf.put("two", times(2))}, {"work.py": WORK}) as pipeline,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda x: pipeline.ask(x=x), large))
        for x, answer in zip(large, answers, strict=True):
            np.testing.assert_array_equal(answer["y"], -x)
            np.testing.assert_array_equal(answer["two"], 2 * x[:1])
        assert len({answer["worker"][0, 0] for answer in answers}) == 2
        # Two files for each of four requests at once, which later ones use again.
        assert all(1 <= answer["worker"][0, 1] <= 8 for answer in answers)
        huge = np.zeros((1 << 21, 4), np.float32)  # 32 MiB
        np.testing.assert_array_equal(pipeline.ask(x=huge)["y"], -huge)
        assert pipeline.ask(x=large[1][:2])["worker"][0, 1] <= 8


def test_a_worker_that_dies_loses_its_request_alone_and_is_replaced(shelf: Shelf) -> None:
    asked = [np.full((1, 4), number, np.float32) for number in (1, 13, 2, 3, 13, 4)]

    def ask(x: Any) -> str:
        try:
            np.testing.assert_array_equal(pipeline.ask(x=x)["y"], -x)
        except InferenceServerException as error:
            return str(error.message())
        return ""

    with (
        served(shelf, POOLED, {"two": shelf.put("two", times(2))}, {"work.py": WORK}) as pipeline,
        ThreadPoolExecutor(len(asked)) as pool,
    ):
        failed = list(pool.map(ask, asked))
        assert [bool(message) for message in failed] == [x[0, 0] == 13 for x in asked]
        assert all("step work: its process ended with 1" in message for message in failed if message)
        assert not any(pool.map(ask, asked[2:4]))


# --- images ----------------------------------------------------------------------------------------------------

SEEN = """
name: seen
inputs: {photo: {datatype: UINT8, shape: [1, -1]}}
outputs: {mean: {datatype: FP32, shape: [1, 3]}}
members:
  decode: {image: {resize: [12, 16], scale: 0.1, std: [1, 2, 4]}}
  mean: {model: mean}
steps:
  decode: {member: decode, inputs: {image: photo}, outputs: {pixels: pixels}}
  look: {member: mean, inputs: {x: pixels}, outputs: {y: mean}}
"""


def of_pixels() -> Any:
    """The mean of each color."""
    axes = numpy_helper.from_array(np.array([1, 2], np.int64), "axes")
    node = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)
    return model([node], [("x", "FP32", ["n", 12, 16, 3])], [("y", "FP32", ["n", 3])], (axes,))


def test_images_are_decoded_by_a_member_of_the_ensemble(shelf: Shelf) -> None:
    packages = {"mean": shelf.put("mean", of_pixels())}
    spec = parse(SEEN).spec
    found = members_of(spec, lambda member: packages[member.model], shelf.store)
    members = {name: each for name, each in found.items() if isinstance(each, Package)}

    def ask(image: Image.Image) -> tuple[Any, Any]:
        body = io.BytesIO()
        image.save(body, "JPEG")
        again = Image.open(io.BytesIO(body.getvalue())).resize((16, 12), Image.Resampling.BILINEAR)
        expected = np.asarray(again).mean(axis=(0, 1)) * 0.1 / (1, 2, 4)
        return pipeline.ask(photo=np.frombuffer(body.getvalue(), np.uint8)[None])["mean"][0], expected

    rng = np.random.default_rng(0)
    images = [
        Image.fromarray(rng.integers(0, 256, (int(height), int(width), 3), dtype=np.uint8))
        for height, width in rng.integers(8, 200, (24, 2))
    ]
    with served(shelf, SEEN, members) as pipeline, ThreadPoolExecutor(6) as pool:
        assert pipeline.checked.way == "ensemble"
        for answer, expected in pool.map(ask, images):
            np.testing.assert_allclose(answer, expected, rtol=1e-4)
        for body, message in 50 * ((b"no image", "not a JPEG or PNG file"), (b"\xff\xd8\xff\xe0" + bytes(40), "JPEG")):
            with pytest.raises(InferenceServerException, match=message):
                pipeline.ask(photo=np.frombuffer(body, np.uint8)[None])
        answer, expected = ask(images[0])
        np.testing.assert_allclose(answer, expected, rtol=1e-4)


# --- failures --------------------------------------------------------------------------------------------------

FALLIBLE = """
name: fallible
inputs: {at: {datatype: INT64, shape: [-1, 1]}}
outputs: {y: {datatype: FP32, shape: [-1, 1]}, plain: {datatype: FP32, shape: [-1, 1]}}
members: {table: {model: table}, steady: {model: steady}}
steps:
  safe: {member: steady, inputs: {x: at}, outputs: {y: plain}}
  look: {member: table, inputs: {x: at}, outputs: {y: y}, HOW}
"""


def ones() -> Any:
    """1 for each number."""
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=1), helper.make_node("Pow", ["f", "zero"], ["y"])]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    return model(nodes, [("x", "INT64", ["n", 1])], [("y", "FP32", ["n", 1])], (zero,))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("timeout_s: 20", None),
        ("on_error: default, defaults: {y: -1}", [[-1], [-1]]),
        ("on_error: default, defaults: {y: {value: 7, shape: [1, 1]}}", [[7]]),
        ("on_error: skip", []),
        ("on_error: skip, otherwise: {y: plain}", [[1], [1]]),
    ],
)
def test_a_member_s_failure_is_answered_as_declared(shelf: Shelf, how: str, expected: list[Any] | None) -> None:
    """The table has four entries; index 9 is an error of the member's execution."""
    packages = {"table": shelf.put("table", lookup()), "steady": shelf.put("steady", ones())}
    with served(shelf, FALLIBLE.replace("HOW", how), packages) as pipeline:
        good, bad = np.array([[1], [3]]), np.array([[1], [9]])
        np.testing.assert_array_equal(pipeline.ask(at=good)["y"], [[1], [3]])
        if expected is None:
            with pytest.raises(InferenceServerException, match=r"pipeline fallible: step look: .*out of data bounds"):
                pipeline.ask(at=bad)
        else:
            np.testing.assert_array_equal(pipeline.ask(at=bad)["y"], np.reshape(expected, (-1, 1)))
        np.testing.assert_array_equal(pipeline.ask(at=good)["y"], [[1], [3]])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("timeout_s: 0.5", r"step wait: it has not ended after 0\.5 s, its limit"),
        ("on_error: skip", r"step wait: it has not ended after 1 s, the limit of a request"),
        ("timeout_s: 0.5, on_error: skip", ""),
    ],
)
def test_a_member_that_does_not_end_in_time_keeps_nobody_waiting(shelf: Shelf, how: str, message: str) -> None:
    """It loops for batches of four, until the limit of its own executions; meanwhile others are answered."""
    text = f"""
name: slow
timeout_s: 1
instances: 1
inputs: {{x: {{datatype: FP32, shape: [-1, 4]}}}}
outputs: {{y: {{datatype: FP32, shape: [-1, 4]}}, z: {{datatype: FP32, shape: [-1, 4]}}}}
members: {{endless: {{model: endless}}, two: {{model: two}}}}
steps:
  wait: {{member: endless, inputs: {{input: x}}, outputs: {{output: y}}, {how}}}
  quick: {{member: two, inputs: {{x: x}}, outputs: {{y: z}}}}
"""
    looping = onnx.load(endless(shelf.folder / "endless.onnx"))
    packages = {"endless": shelf.put("endless", looping, limit_s=3, max_batch=8), "two": shelf.put("two", times(2))}
    with served(shelf, text, packages) as pipeline:
        started = time.monotonic()
        if message:
            with pytest.raises(InferenceServerException, match=message):
                pipeline.ask(x=rows(4))
        else:
            answer = pipeline.ask(x=rows(4))
            assert answer["y"].shape == (0, 4)
            np.testing.assert_array_equal(answer["z"], 2 * rows(4))
        assert time.monotonic() - started < 3  # before the member's own limit
        np.testing.assert_array_equal(pipeline.ask(["z"], x=rows(4))["z"], 2 * rows(4))
