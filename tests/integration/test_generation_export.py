"""The export of a language model, without a stack: OpenVINO GenAI must generate the tokens of `transformers`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino_genai", reason="the `generation` extra is not installed")

from shiplift.runtime.admission.examples import missing_example
from shiplift.runtime.base.errors import ExportFailed, NotAdmitted
from shiplift.runtime.model.contracts import LoggedModel, read_model
from shiplift.runtime.model.generation.signature import CHAT_SIGNATURE, ROOM, SIGNATURE
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.kinds.contract import DeclaredGeneration
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets, ModelVersion, RecordedRequests
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.model import Conversion, Data
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.export import export
from shiplift.steps.quantize import quantize
from tests.generating import CHAT_TEMPLATE, PROMPTS, llama_tokenizer, pipeline
from tests.packages import packaged
from tests.unit.examples import signature, site


def exported(home: Path, model: Any, prompts: list[str]) -> Exported:
    import mlflow

    types = mlflow.models.ModelSignature.from_dict(
        {"inputs": '[{"type": "string"}]', "outputs": '[{"type": "string"}]'}
    )
    mlflow.transformers.save_model(model, str(home / "model"), signature=types, pip_requirements=[])
    store = ArtifactStore(site(home).artifacts_uri)
    example = {"input": np.array(prompts, object).reshape(-1, 1)}
    version = ModelVersion(
        name="writer", version=1, digest="d", flavor="transformers", files=store.put_tree(home / "model")
    )
    contract = DeclaredGeneration(signature=signature(), example=store.put_bytes(dump_npz(example)))
    return export(site(home), version, contract, Conversion(), Datasets(), Data(), RecordedRequests())


@pytest.mark.slow
def test_one_by_one_and_together_the_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    model = pipeline()
    result = exported(tmp_path, model, PROMPTS)
    assert [(case.inputs, case.batch, case.problem) for case in result.parity] == [
        ("one prompt at a time", 1, ""),
        ("all prompts at once", len(PROMPTS), ""),
    ]
    assert (result.signature, result.kind) == (SIGNATURE, "generation")
    assert any("takes 256 tokens" in note for note in result.notes)
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    golden = load_npz(store.fetch(result.reference, tmp_path / "reference.npz"))
    expected = [continued(model, prompt, int(golden["input/max_tokens"][0, 0])) for prompt in PROMPTS]
    assert golden["output/text"].reshape(-1).tolist() == expected
    assert golden[ROOM].reshape(-1).tolist() == [256 - len(model.tokenizer(prompt).input_ids) for prompt in PROMPTS]


@pytest.mark.slow
def test_a_chat_template_that_gives_the_tokens_of_transformers_is_exported(tmp_path: Path) -> None:
    model = pipeline(template=CHAT_TEMPLATE)
    result = exported(tmp_path, model, PROMPTS)
    assert result.signature == CHAT_SIGNATURE
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    assert (store.fetch(result.model, tmp_path / "written") / "chat.json").is_file()
    golden = load_npz(store.fetch(result.reference, tmp_path / "reference.npz"))
    assert golden["input/chat"].reshape(-1).tolist() == [True, *[False] * len(PROMPTS)]
    messages = json.loads(golden["input/prompt"][0, 0])
    ids = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt").input_ids
    tokens = int(golden["input/max_tokens"][0, 0])
    written = model.model.generate(ids, attention_mask=ids * 0 + 1, do_sample=False, max_new_tokens=tokens)
    assert golden["output/text"][0, 0] == model.tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
    assert golden["output/prompt_tokens"][0, 0] == ids.shape[1]


@pytest.mark.slow
def test_a_chat_template_that_answers_nobody_leaves_a_model_that_takes_prompts(tmp_path: Path) -> None:
    result = exported(tmp_path, pipeline(template="{{ raise_exception('never') }}"), PROMPTS)
    assert result.signature == SIGNATURE
    assert any("no conversations: its chat template refuses every" in note for note in result.notes)
    tree = ArtifactStore(site(tmp_path).artifacts_uri).fetch(result.model, tmp_path / "written")
    assert not (tree / "chat.json").exists()


@pytest.mark.slow
def test_what_bytes_a_llama_s_tokenizer_falls_back_to_is_shown_as_transformers_does(tmp_path: Path) -> None:
    """The model is random, so its bytes are hardly ever characters."""
    model = pipeline(words=llama_tokenizer())
    result = exported(tmp_path, model, PROMPTS)
    assert {case.problem for case in result.parity} == {""}
    golden = load_npz(ArtifactStore(site(tmp_path).artifacts_uri).fetch(result.reference, tmp_path / "reference.npz"))
    assert any("\ufffd" in text for text in golden["output/text"].reshape(-1))


def continued(model: Any, prompt: str, tokens: int) -> str:
    ids = model.tokenizer(prompt, return_tensors="pt").input_ids
    written = model.model.generate(ids, attention_mask=ids * 0 + 1, do_sample=False, max_new_tokens=tokens)
    return str(model.tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True))


@pytest.mark.slow
def test_a_prompt_that_the_model_cannot_take_is_no_example(tmp_path: Path) -> None:
    with pytest.raises(
        ExportFailed, match=r"the model can't take the input example: the prompt has .* tokens, the limit is"
    ):
        exported(tmp_path, pipeline(), ["a " * 2000])


@pytest.mark.parametrize("engine", ["vllm", pytest.param("tensorrt-llm", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_package_for_a_gpu_has_the_logged_weights_and_the_same_front(tmp_path: Path, engine: Any) -> None:
    result, spec = exported(tmp_path, pipeline(template=CHAT_TEMPLATE), PROMPTS), parse("")
    here, store = site(tmp_path), ArtifactStore(site(tmp_path).artifacts_uri)
    gpu = Target(
        name="h100",
        accelerator="nvidia",
        compute_capability="9.0",
        server="nvidia",
        engine=engine,
        gpus=(0, 1),
        precisions=("bf16",),
        image="example/tritonserver:25.10",
    )
    files = store.put_tree(tmp_path / "model")
    version = ModelVersion(name="writer", version=1, digest="d", flavor="transformers", files=files)
    offered = quantize(here, gpu, result, Datasets(), spec.data, spec.quantization)
    made = packaged(here, gpu, version, result, offered, serving=spec.serving, search_space=spec.search)
    (built,) = made.packages
    assert (built.engine, built.precision, built.nodes.gpus) == (engine, "bf16", 2)
    tree = store.fetch(built.repository, tmp_path / "package")
    folder = tree / "writer" / "1"
    logged = tmp_path / "model" / "model"
    for name in ("model.safetensors", "config.json"):
        assert (folder / "weights" / name).read_bytes() == (logged / name).read_bytes()
    library = {"vllm": "from vllm import", "tensorrt-llm": "from tensorrt_llm import"}[engine]
    assert library in (folder / "engine.py").read_text()
    assert {
        "model.py",
        "front.py",
        "tokenizer.json",
        "generation.json",
        "chat.json",
        "writer.py",
        "chats",
        "tokenizers",
    } <= {path.name for path in folder.iterdir()}
    assert not list(folder.rglob("*openvino*"))
    assert not list(folder.rglob("*.py[co]"))
    golden = load_npz(tree / GOLDEN)
    assert golden["input/prompt"].shape[0] == golden["output/text"].shape[0] > 1
    assert 'value { string_value: "bfloat16" }' in " ".join((tree / "writer" / "config.pbtxt").read_text().split())


def saved(folder: Path, **options: Any) -> LoggedModel:
    import mlflow

    path = folder / "saved"
    mlflow.transformers.save_model(pipeline(template=CHAT_TEMPLATE), str(path), pip_requirements=[], **options)
    return read_model(path)


def test_what_was_logged_in_openai_s_terms_is_read_as_a_text_generator(tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "ships carry"}]}
    logged = saved(tmp_path, task="llm/v1/chat", input_example=asked)
    assert (logged.task, logged.example) == ("text-generation", None)
    assert [(spec.name, spec.datatype) for spec in logged.signature.inputs] == [("prompt", "BYTES")]
    example, note = missing_example(tmp_path / "saved", logged)
    assert example["prompt"].shape[1] == 1
    assert "Shiplift's own sentences" in note
    assert any("`shiplift openai` serves that API" in each for each in logged.notes)


def test_a_template_that_mlflow_puts_around_each_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAdmitted, match="was logged with a `prompt_template`"):
        saved(tmp_path, prompt_template="Q: {prompt}")
