"""Packages of models that generate text: OpenVINO's model, the code around it, and the library that generates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import MissingTool, SpecInvalid
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.search.space import first_config, space_of
from shiplift.runtime.serving.packaging import generation_backend
from shiplift.runtime.serving.triton.config import parse
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.measurement import SearchSpace
from shiplift.runtime.spec.model import Data, Quantization
from shiplift.runtime.spec.serving_settings import Generation, Serving
from shiplift.runtime.spec.target import Target
from shiplift.steps.quantize import quantize
from tests.unit.examples import artifact, exported, package, site
from tests.unit.steps.test_package import Bench


class WriterBench(Bench):
    """A site with a model that generates text, as export writes it."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        folder = home / "writer"
        folder.mkdir()
        for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json", "generation.json"):
            (folder / name).write_text(name)
        self.model = self.store.put_tree(folder)

    def exported(self, *parity: Any) -> Exported:
        reference = {
            "input/prompt": np.array([["a"], ["b"]], object),
            "input/max_tokens": np.full((2, 1), 8, np.int32),
            "output/text": np.array([["x"], ["y"]], object),
            "output/finish_reason": np.array([["length"]] * 2, object),
            "output/tokens": np.full((2, 1), 8, np.int32),
            "output/prompt_tokens": np.full((2, 1), 3, np.int32),
        }
        return exported(
            *parity,
            model=self.model,
            signature=SIGNATURE,
            kind="generation",
            reference=self.store.put_bytes(dump_npz(reference)),
        )


@pytest.fixture
def bench(tmp_path: Path) -> WriterBench:
    pytest.importorskip("openvino_genai", reason="the `generation` extra is not installed")
    return WriterBench(tmp_path)


def offered(bench: Bench) -> Candidates:
    candidate = Candidate(engine="openvino", precision="fp32", model=bench.model)
    return Candidates(target="local-cpu", metric=None, candidates=(candidate,))


def test_a_package_brings_the_limits_the_golden_answers_and_what_generates(bench: WriterBench, tmp_path: Path) -> None:
    serving = Serving(generation=Generation(max_tokens=64))
    (built,) = bench.package(offered(bench), serving=serving).packages
    assert built.signature == SIGNATURE
    tree = bench.store.fetch(built.repository, tmp_path / "tree")
    golden = load_npz(tree / GOLDEN)
    assert "input/temperature" not in golden  # optional, and not in the reference
    assert golden["output/text"].reshape(-1)[:2].tolist() == ["x", "y"]
    (name,) = (path.name for path in tree.iterdir() if path.is_dir())
    config = parse((tree / name / "config.pbtxt").read_text())
    assert config.model_transaction_policy.decoupled
    assert (config.parameters["max_tokens"].string_value, len(config.model_warmup)) == ("64", 0)
    files = {
        "openvino_model.xml",
        "openvino_model.bin",
        "tokenizer.json",
        "generation.json",
        "model.py",
        "front.py",
        "engine.py",
        "panics.py",
        "generator.py",
        "writer.py",
        "hosted_text.py",
        "python_host",
        "tokenizers",
        "openvino_genai",
    }
    assert {path.name for path in (tree / name / "7").iterdir()} == files
    assert (tree / name / "7" / "openvino_genai" / "libopenvino_tokenizers.so").is_file()


def test_a_model_with_a_chat_template_brings_what_renders_conversations(bench: WriterBench, tmp_path: Path) -> None:
    (tmp_path / "writer" / "chat.json").write_text("{}")
    bench.model = bench.store.put_tree(tmp_path / "writer")
    (built,) = bench.package(offered(bench)).packages
    tree = bench.store.fetch(built.repository, tmp_path / "tree")
    (version,) = (path / "7" for path in tree.iterdir() if path.is_dir())
    assert {path.name for path in version.iterdir()} >= {"chat.json", "jinja2", "markupsafe", "python_host"}
    hosted = version / "chats" / "python_host"
    assert "ImmutableSandboxedEnvironment" in (hosted / "served.py").read_text()
    assert not list((version / "markupsafe").glob("*.so"))  # it would be of one Python


def test_a_library_that_is_missing_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_backend, "find_spec", lambda name: None)
    with pytest.raises(MissingTool) as error:
        generation_backend.write_generation_backend(tmp_path / "backend", tmp_path, "openvino")
    assert "shiplift[generation]" in error.value.do
    assert not (tmp_path / "backend").exists()


def test_the_only_precision_is_fp32_and_validation_data_are_said_to_be_unused(tmp_path: Path) -> None:
    model = exported(signature=SIGNATURE, kind="generation")

    def built(datasets: Datasets, target: Target | None = None) -> Candidates:
        return quantize(site(tmp_path), target or Target(), model, datasets, Data(), Quantization())

    (candidate,) = built(Datasets()).candidates
    assert (candidate.engine, candidate.precision, candidate.score) == ("openvino", "fp32", None)
    assert candidate.model == model.model
    assert built(Datasets()).notes == ()
    (note,) = built(Datasets(validation=artifact(), validation_name="validation.npz")).notes
    assert "Validation data are not used" in note
    with pytest.raises(SpecInvalid, match="can't serve a model that generates text"):
        built(Datasets(), Target(engine="onnxruntime"))


def test_one_instance_answers_all_and_only_its_threads_are_searched() -> None:
    space = SearchSpace(max_batch=(1, 8), instances=(2, 4), threads=(1, 2))
    assert first_config(space, Serving(), "bundled", SIGNATURE).instances == 1
    served = package(signature=SIGNATURE, engine="openvino")
    assert {instances for instances, _ in space_of((served,), space, Serving(), 2).placements} == {1}
