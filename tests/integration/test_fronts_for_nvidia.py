"""Models of texts and images, packaged for NVIDIA's server and loaded into the bundled one.

Its Python backend is NVIDIA's. The graph runs in our `onnxruntime` backend, which has the names of NVIDIA's. The
answers must equal those of the same models packaged for the bundled server.
"""

import base64
import functools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tokenizers", reason="the `transformers` extra is not installed")

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.families import fronts
from shiplift.runtime.model.python.layers import unpack_all
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.kinds.exported import Exported, Front
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.packaging.front_backend import pack_front_environment
from shiplift.runtime.serving.triton.client import TritonClient, check_package
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository import GOLDEN, install_all
from shiplift.runtime.spec.target import Target
from tests.huggingface import TEXTS, image_file
from tests.integration.backends import ENVIRONMENT
from tests.integration.test_benches import pod_bench
from tests.unit.examples import exported, site, tensor
from tests.unit.steps.test_package_text import TextBench, offered

pytestmark = pytest.mark.integration
NVIDIA = Target(name="other", server="nvidia", image="example.org/tritonserver:1")
TOO_LONG = "a " * 200
NO_IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\nand no more").decode()


class Texts(TextBench):
    """A graph whose scores are the sum of a text's token ids and their number, whatever else is in the batch."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        ids, mask = (
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("input_ids", "attention_mask")
        )
        nodes = [
            helper.make_node("Mul", ["input_ids", "attention_mask"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "axes"], ["ids"], keepdims=1),
            helper.make_node("ReduceSum", ["attention_mask", "axes"], ["count"], keepdims=1),
            helper.make_node("Concat", ["ids", "count"], ["scores"], axis=1),
            helper.make_node("Cast", ["scores"], ["probabilities"], to=TensorProto.FLOAT),
        ]
        self.save(nodes, [ids, mask], 2, [1])

    def save(self, nodes: list[Any], inputs: list[Any], classes: int, axes: list[int]) -> None:
        scores = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", classes])
        constant = helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)
        graph = helper.make_graph(nodes, "g", inputs, [scores], [constant])
        onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), self.file)
        self.model = self.store.put_tree(self.file.parent)


class Images(Texts):
    """A graph whose scores are the means of the colors."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        pixels = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["batch", 3, 4, 4])
        node = helper.make_node("ReduceMean", ["pixel_values", "axes"], ["probabilities"], keepdims=0)
        self.save([node], [pixels], 3, [2, 3])
        task = {"task": "image-classification", "inputs": ["input"], "labels": ["red", "green", "blue"], "top": 2}
        sizes = {"max_pixels": 10**6, "resize": [4, 4], "filter": 2, "crop": None}
        settings = task | sizes | {"scale": 1 / 255, "mean": None, "std": None}
        folder = home / "images"
        folder.mkdir()
        (folder / "image.json").write_text(json.dumps(settings))
        self.files = self.store.put_tree(folder)

    def exported(self, *parity: Any) -> Exported:
        images = {
            "input/input": np.array(IMAGES, dtype=object).reshape(-1, 1),
            "output/label": np.full((len(IMAGES), 2), "red", object),
            "output/score": np.ones((len(IMAGES), 2), np.float32),
        }
        seen = Signature(
            inputs=(tensor("input", -1, 1, datatype="BYTES"),),
            outputs=(tensor("label", -1, 2, datatype="BYTES"), tensor("score", -1, 2)),
        )
        front = Front(files=self.files, signature=seen, reference=self.store.put_bytes(dump_npz(images)))
        graph = Signature(inputs=(tensor("pixel_values", -1, 3, 4, 4),), outputs=(tensor("probabilities", -1, 3),))
        return exported(*parity, model=self.model, signature=graph, kind="image", front=front)


IMAGES = [base64.b64encode(image_file(8 + edge, 6)).decode() for edge in range(3)]
MODELS: dict[str, tuple[type[Texts], list[str], str, str]] = {
    "texts": (Texts, [*TEXTS, ""], TOO_LONG, "the model takes 64"),
    "images": (Images, IMAGES, NO_IMAGE, "the image can't be decoded"),
}


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of fronts, packed once."""
    return pack_front_environment(tmp_path_factory.mktemp("layer"), images=True)


@pytest.fixture
def packed(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all packages contain that layer."""

    def pack(folder: Path, *, images: bool) -> Path:
        return Path(shutil.copy(layer, folder / "layer"))

    monkeypatch.setattr(fronts, "pack_front_environment", pack)


@pytest.mark.slow
@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("kind", ["texts", pytest.param("images", marks=pytest.mark.slow)])
def test_the_front_calls_its_graph_and_answers_as_on_the_bundled_server(kind: str, tmp_path: Path) -> None:
    make, items, bad, reason = MODELS[kind]
    models, folder, environments = make(tmp_path), tmp_path / "models", tmp_path / "environments"
    here, elsewhere = (models.package(offered(models), target=target).packages[0] for target in (Target(), NVIDIA))
    trees = [models.store.fetch(each.repository, tmp_path / each.server) for each in (here, elsewhere)]
    unpack_all(trees[1], environments)
    with (
        private_server(
            ServerEnvironment(ENVIRONMENT.root, environments), folder, Features(), log=tmp_path / "log"
        ) as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        for package, tree in zip((here, elsewhere), trees, strict=True):
            install_all(tree, folder, source=serving_name(package.model), name=package.server)
            for ending in (*package.called_endings, ""):
                client.load(package.server + ending)
            check_package(client, package.server, package, load_npz(tree / GOLDEN))
        expected = [tried(server.grpc, here, [item]) for item in (*items, bad)]
        assert reason in expected[-1]
        with ThreadPoolExecutor(8) as pool:  # batches of good and bad requests
            sent = [[item] for item in (*items, bad) * 4]
            answers = list(pool.map(functools.partial(tried, server.grpc, elsewhere), sent))
        together = tried(server.grpc, elsewhere, items)
    for answer, right in zip(answers, expected * 4, strict=True):
        same(answer, right)
    same(together, {key: np.concatenate([one[key] for one in expected[:-1]]) for key in expected[0]})


@pytest.mark.slow
@pytest.mark.usefixtures("packed")
def test_a_search_tunes_the_front_and_its_graph_together_in_a_pod(tmp_path: Path) -> None:
    models = Texts(tmp_path)
    (package,) = models.package(offered(models), target=NVIDIA).packages
    golden = load_npz(models.store.read_from_tree(package.repository, GOLDEN))
    config = ServingConfig(max_batch=4, queue_delay_us=2000, instances=2, threads=1)
    with pod_bench(site(tmp_path), (package,), tmp_path / "pod") as (pod, _):
        for _ in range(2):  # the second time, both are unloaded first
            name = pod.serve(Point(package, config))
        with TritonClient(pod.address("grpc"), repository_key=pod._running.key) as client:
            assert set(client.loaded()) == {name, f"{name}--tensors"}
            front, graph = (client.config(each) for each in (name, f"{name}--tensors"))
            check_package(client, name, package, golden)
    for tuned, delay in ((front, 2000), (graph, 0)):
        assert tuned.dynamic_batching.max_queue_delay_microseconds == delay
        assert (tuned.max_batch_size, tuned.instance_group[0].count) == (4, 2)


def tried(address: str, package: Package, items: list[str]) -> Any:
    """The answers to items, or the error; the package is served under its server's name."""
    try:
        with TritonClient(address) as client:
            column = {"input": np.array(items, dtype=object).reshape(-1, 1)}
            return client.infer(package.server, package.signature, column)
    except ServerFailed as error:
        return error.what.partition(": ")[2]


def same(answer: Any, expected: Any) -> None:
    if isinstance(expected, str):
        assert answer == expected
        return
    assert answer.keys() == expected.keys()
    assert answer["label"].tolist() == expected["label"].tolist()
    np.testing.assert_allclose(answer["score"], expected["score"], rtol=1e-5)
