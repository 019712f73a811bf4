"""Packages of models that take text: their graph, the code around it, and the library that tokenizes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shiplift.runtime.base.errors import MissingTool, SpecInvalid
from shiplift.runtime.families import fronts
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.kinds.exported import Exported, Front
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.packaging import front_backend
from shiplift.runtime.serving.triton.config import parse
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.measurement import SearchSpace
from shiplift.runtime.spec.serving_settings import RateLimiter, SequenceBatching, Serving
from shiplift.runtime.spec.target import InstanceGroup, Target
from tests.huggingface import TEXTS, tokenizer
from tests.unit.examples import Golden, exported, tensor
from tests.unit.steps.test_package import Bench


def length(file: Path) -> Path:
    """A graph whose score for class 1 grows with the number of tokens."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 2])
    half = helper.make_tensor("half", TensorProto.FLOAT, [1, 1], [0.125])
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["ids"]),
        helper.make_node("ReduceSum", ["attention_mask", "axis"], ["count"], keepdims=1),
        helper.make_node("ReduceMin", ["ids", "axis"], ["least"], keepdims=1),
        helper.make_node("Add", ["count", "least"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["tokens"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["tokens", "half"], ["second"]),
        helper.make_node("Sub", ["half", "second"], ["first"]),
        helper.make_node("Concat", ["first", "second"], ["probabilities"], axis=1),
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "length", values, [output], [half, axis])
    file.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), file)
    return file


class TextBench(Bench):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.file = length(home / "text-onnx" / "model.onnx")
        self.model = self.store.put_tree(self.file.parent)
        folder = home / "front"
        folder.mkdir()
        tokenizer().backend_tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "text.json").write_text(
            json.dumps(
                {
                    "task": "text-classification",
                    "labels": ["short", "long"],
                    "max_tokens": 64,
                    "truncate": False,
                    "inputs": ["input"],
                    "types": False,
                    "pad_id": 0,
                    "mask_id": 4,
                    "unknown_id": 1,
                    "strip": False,
                    "lower": False,
                    "prefix": "",
                }
            )
        )
        self.files = self.store.put_tree(folder)

    def exported(self, *parity: Any) -> Exported:
        texts = {
            "input/input": np.array(TEXTS, dtype=object).reshape(-1, 1),
            "output/label": np.full((len(TEXTS), 1), "long", object),
            "output/score": np.ones((len(TEXTS), 1), np.float32),
        }
        seen = Signature(
            inputs=(tensor("input", -1, 1, datatype="BYTES"),),
            outputs=(tensor("label", -1, 1, datatype="BYTES"), tensor("score", -1, 1)),
        )
        ids = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("input_ids", "attention_mask"))
        front = Front(files=self.files, signature=seen, reference=self.store.put_bytes(dump_npz(texts)))
        graph = Signature(inputs=ids, outputs=(tensor("probabilities", -1, 2),))
        return exported(*parity, model=self.model, signature=graph, kind="text", front=front)


def offered(bench: Bench, engine: Any = "onnxruntime") -> Candidates:
    candidate = Candidate(engine=engine, precision="fp32", model=bench.model, score=0.95, samples=500)
    return Candidates(target="local-cpu", metric="accuracy", validation="v" * 64, candidates=(candidate,))


@pytest.fixture
def bench(tmp_path: Path) -> TextBench:
    pytest.importorskip("tokenizers")
    return TextBench(tmp_path)


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_text_package_takes_texts_and_brings_its_tokenizer(bench: TextBench, tmp_path: Path, engine: str) -> None:
    (built,) = bench.package(offered(bench, engine)).packages
    assert [spec.datatype for spec in (*built.signature.inputs, *built.signature.outputs)] == ["BYTES", "BYTES", "FP32"]
    tree = bench.store.fetch(built.repository, tmp_path / "tree")
    golden = load_npz(tree / GOLDEN)
    assert golden["output/label"].reshape(-1)[:3].tolist() == ["long"] * 3
    (name,) = (path.name for path in tree.iterdir() if path.is_dir())
    config = parse((tree / name / "config.pbtxt").read_text())
    assert config.backend == "python"
    assert ("precision_hint" in config.parameters) == (engine == "openvino")
    version = tree / name / "7"
    files = {
        "model.py",
        "inner.py",
        "packing.py",
        "python_model.py",
        "python_host",
        "onnx_model.py",
        "front.py",
        "panics.py",
        "text.json",
        "tokenizer.json",
        "model.onnx",
        "tokenizers",
    }
    assert {path.name for path in version.iterdir()} == files
    code = "import sys; sys.path.insert(0, sys.argv[1]); import tokenizers; print(tokenizers.__file__)"
    alone = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, version], capture_output=True, text=True, check=True
    )
    assert alone.stdout.strip() == str(version / "tokenizers" / "__init__.py")


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_graph_behind_the_texts_is_a_model_beside_it_with_golden_requests_of_its_own(
    bench: TextBench, tmp_path: Path, engine: str
) -> None:
    serving = Serving(tensors=True, labels=("short", "long"))
    (built,) = bench.package(offered(bench, engine), serving=serving).packages
    assert built.graph_tensors == bench.exported().signature
    tree = bench.store.fetch(built.repository, tmp_path / "tree")
    name, beside = sorted(path.name for path in tree.iterdir() if path.is_dir())
    assert beside == name + "--tensors"
    config = parse((tree / beside / "config.pbtxt").read_text())
    assert (config.name, config.backend) == (beside, engine)
    assert [(entry.name, list(entry.dims)) for entry in config.input] == [("input_ids", [-1]), ("attention_mask", [-1])]
    assert (tree / beside / "7" / "model.onnx").read_bytes() == bench.file.read_bytes()
    golden = load_npz(tree / GOLDEN)
    ids, mask = (golden[f"graph/input/{key}"] for key in ("input_ids", "attention_mask"))
    assert ids.shape == mask.shape == (8, mask.sum(axis=1).max())
    tokens = mask.sum(axis=1) + np.min(ids * mask, axis=1)  # what the graph computes
    np.testing.assert_allclose(golden["graph/output/probabilities"][:, 1], 0.125 * tokens, rtol=1e-6)
    assert {key for key in golden if not key.startswith("graph/")} == {"input/input", "output/label", "output/score"}


def test_only_a_model_of_texts_has_a_graph_behind_it(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match=r"`serving.tensors` is for models that take text"):
        Bench(tmp_path).package(serving=Serving(tensors=True))


NVIDIA = Target(server="nvidia", image="example.org/triton:1")
GPU = Target(
    accelerator="nvidia",
    server="nvidia",
    engine="onnxruntime-tensorrt",
    gpus=(0, 1),
    instance_groups=(InstanceGroup(count=1, gpus=(1,)),),
)


@pytest.mark.parametrize(("name", "target", "engine"), [("cpu", NVIDIA, "onnxruntime"), ("gpu", GPU, GPU.engine)])
def test_on_nvidia_s_server_the_front_calls_its_graph(
    bench: TextBench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
    name: str,
    target: Any,
    engine: str,
) -> None:
    packed = []

    def pack(folder: Path, *, images: bool) -> Path:
        packed.append(images)
        return Path(shutil.copy(bench.file, folder / "layer"))

    monkeypatch.setattr(fronts, "pack_front_environment", pack)
    serving = Serving(rate_limiter=RateLimiter(resources={"memory": 2}), labels=("short", "long"))
    space = SearchSpace(queue_delay_us=(500,))
    (built,) = bench.package(offered(bench, engine), target=target, serving=serving, search_space=space).packages
    assert (built.called_endings, built.brings_python, built.endings) == (("--tensors",), True, ("", "--tensors"))
    assert built.graph_tensors == bench.exported().signature
    assert built.needs.rate_limiter
    tree = bench.store.fetch(built.repository, tmp_path / "tree")
    layer, front, graph = sorted(path.name for path in tree.iterdir() if path.is_dir())
    assert (layer, graph, packed) == ("environments", f"{front}--tensors", [False])
    assert {path.name for path in (tree / front / "7").iterdir()} == {
        *("front.py", "panics.py", "text.json", "tokenizer.json"),
        *("model.py", "python_model.py", "python.json", "python_host"),
    }
    (environment,) = (tree / layer).iterdir()
    settings = json.loads((tree / front / "7" / "python.json").read_text())
    assert environment.name == f"{settings['environment']}.tar.gz"
    assert [path.name for path in (tree / graph / "7").iterdir()] == ["model.onnx"]
    for each, part in ((front, "front"), (graph, "graph")):
        golden(f"text-{part}.nvidia-{name}.config.pbtxt", (tree / each / "config.pbtxt").read_text())
    kept = load_npz(tree / GOLDEN)
    assert kept["output/label"].reshape(-1)[:3].tolist() == ["long"] * 3
    assert len(kept["graph/output/probabilities"]) == len(kept["input/input"]) == 8


def test_states_are_refused(bench: TextBench) -> None:
    with pytest.raises(SpecInvalid, match="has no states"):
        bench.package(offered(bench), serving=Serving(sequence_batching=SequenceBatching(states={"a": "b"})))


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_backend, "find_spec", lambda name: None)
    with pytest.raises(MissingTool) as error:
        front_backend.write_front_backend(tmp_path / "backend", tmp_path)
    assert "shiplift[transformers]" in error.value.do


def test_a_model_of_images_brings_what_decodes_them_and_no_tokenizer(tmp_path: Path) -> None:
    front = tmp_path / "front"
    front.mkdir()
    (front / "image.json").write_text("{}")
    written = front_backend.write_front_backend(tmp_path / "backend", front)
    assert {path.name for path in written.iterdir()} == {
        "model.py",
        "inner.py",
        "packing.py",
        "python_model.py",
        "python_host",
        "onnx_model.py",
        "encoded.py",
        "front.py",
        "image.json",
    }
    assert "class ImageFront" in (written / "front.py").read_text()
