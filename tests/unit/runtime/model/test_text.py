"""Text models: the code around their graphs, and which of them are released."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shiplift.runtime.admission.conversion import _check_settings
from shiplift.runtime.admission.examples import missing_example
from shiplift.runtime.base.errors import DataInvalid, ExportFailed, NotAdmitted
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.model.conversion import loaders
from shiplift.runtime.model.conversion.graphs import with_known_sizes
from shiplift.runtime.model.text.comparing import text_difference
from shiplift.runtime.model.text.samples import tokenized
from shiplift.runtime.model.text.tasks import example_texts, task_of, truncation_of
from shiplift.runtime.spec.model import Conversion

pytest.importorskip("tokenizers")

from tests.huggingface import TEXTS
from tests.unit.runtime.guest.fronts.test_text_front import front


def test_logged_texts_become_tokens_and_logged_names_numbers(tmp_path: Path) -> None:
    front(tmp_path)
    texts = {"input": np.array([["a film"], ["a"]], dtype=object)}
    inputs, labels = tokenized(texts, np.array(["B-PER", "O"]), tmp_path, "validation.npz")
    assert inputs["input_ids"].shape == (2, 4)
    assert labels is not None
    assert labels.tolist() == [1, 0]
    with pytest.raises(DataInvalid, match="has the label 'X'; the model's are O, B-PER"):
        tokenized(texts, np.array(["X", "O"]), tmp_path, "validation.npz")
    with pytest.raises(DataInvalid, match="the model can't take: the text has 22 tokens"):
        tokenized({"input": np.array(["a " * 20])}, None, tmp_path, "validation.npz")


# --- comparing ---


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("a", "a", 0),
        ("a", "b", float("inf")),
        ('[{"a": 0.5}]', '[{"a": 0.25}]', 0.25),
        ('[{"a": 1}]', '[{"a": 2}]', float("inf")),
        ("[1.0]", "[1.0, 2.0]", float("inf")),
        ('{"a": 1.0}', "[1.0]", float("inf")),
        ("[", "[1", float("inf")),
        ("[NaN]", "[0.5]", float("inf")),
    ],
)
def test_texts_are_equal_or_json_with_numbers_that_are_close(left: str, right: str, expected: float) -> None:
    assert text_difference(np.array([left], object), np.array([right.encode()], object)) == expected


# --- what is released ---


def logged(folder: Path, kind: str, *, task: str = "x", flavor: str = "transformers", **more: Any) -> Path:
    signature = {"inputs": '[{"type": "string"}]', "outputs": '[{"type": "string"}]'}
    meta = {"flavors": {flavor: {"instance_type": kind, "task": task, **more}}, "signature": signature}
    (folder / "MLmodel").write_text(json.dumps(meta))
    return folder


def test_a_text_pipeline_takes_one_text_per_sample(tmp_path: Path) -> None:
    model = read_model(logged(tmp_path, "TextClassificationPipeline"))
    assert [(spec.name, spec.datatype, spec.shape) for spec in model.signature.inputs] == [("input", "BYTES", (-1, 1))]
    assert model.flavor == "transformers"


def test_only_a_pipeline_that_continues_texts_generates(tmp_path: Path) -> None:
    model = read_model(logged(tmp_path, "TextGenerationPipeline", task="text-generation"))
    assert model.task == "text-generation"
    assert [(spec.name, spec.datatype, spec.shape) for spec in model.signature.inputs] == [("input", "BYTES", (-1, 1))]
    assert read_model(logged(tmp_path, "TextClassificationPipeline")).task == "text-classification"


PAIR_SIGNATURE = '[{"type": "string", "name": "text_pair"}, {"type": "string", "name": "text"}]'


def logged_pairs(folder: Path, example: str, kind: str = "json_object") -> Path:
    meta = json.loads((logged(folder, "TextClassificationPipeline") / "MLmodel").read_text())
    meta["signature"]["inputs"] = PAIR_SIGNATURE
    meta["saved_input_example_info"] = {"artifact_path": "input_example.json", "type": kind}
    (folder / "MLmodel").write_text(json.dumps(meta))
    (folder / "input_example.json").write_text(example)
    return folder


@pytest.mark.parametrize(
    ("example", "kind"),
    [
        ('[{"text": "a", "text_pair": "b"}]', "json_object"),
        ('{"text": "a", "text_pair": "b"}', "json_object"),
        ('{"columns": ["text_pair", "text"], "data": [["b", "a"]]}', "dataframe"),
    ],
)
def test_a_pipeline_logged_with_pairs_takes_two_texts(tmp_path: Path, example: str, kind: str) -> None:
    model = read_model(logged_pairs(tmp_path, example, kind))
    assert [(spec.name, spec.shape) for spec in model.signature.inputs] == [("text", (-1, 1)), ("text_pair", (-1, 1))]
    assert model.example is not None
    assert {name: array.tolist() for name, array in model.example.items()} == {"text": [["a"]], "text_pair": [["b"]]}


def test_an_example_without_the_second_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAdmitted, match="does not match the signature"):
        read_model(logged_pairs(tmp_path, '[{"text": "a"}]'))


def test_pairs_without_an_example_are_made_of_two_different_texts(tmp_path: Path) -> None:
    folder = logged_pairs(tmp_path, "[]")
    meta = json.loads((folder / "MLmodel").read_text())
    del meta["saved_input_example_info"]
    (folder / "MLmodel").write_text(json.dumps(meta))
    example, note = missing_example(folder, read_model(folder))
    assert list(example) == ["text", "text_pair"]
    assert all(a != b for a, b in zip(example["text"].flat, example["text_pair"].flat, strict=True))
    assert "Log one with real texts" in note


def test_a_cross_encoder_that_mlflow_would_load_as_a_sentence_encoder_is_refused(tmp_path: Path) -> None:
    folder = logged(tmp_path, "", flavor="sentence_transformers", pipeline_model_type="BertForSequenceClassification")
    (folder / "MLmodel").write_text((folder / "MLmodel").read_text().replace('"task": "x", ', ""))
    with pytest.raises(NotAdmitted, match="without its head") as error:
        read_model(folder)
    assert "mlflow.transformers" in error.value.do


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        ("QuestionAnsweringPipeline", {"task": "question-answering"}, "transformers 5 has no pipeline any more"),
        ("Text2TextGenerationPipeline", {"task": "translation"}, "'translation': of the models that generate text"),
        ("DepthEstimationPipeline", {"task": "depth-estimation"}, "task is 'depth-estimation'; released ones are"),
        ("TextClassificationPipeline", {"peft_adaptor": "peft"}, "a PEFT adapter"),
    ],
)
def test_other_tasks_are_refused_with_what_to_do(tmp_path: Path, kind: str, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotAdmitted, match=reason):
        read_model(logged(tmp_path, kind, **more))


def test_a_model_config_changes_the_answers_and_is_refused() -> None:
    flavors = {
        "transformers": {"instance_type": "TokenClassificationPipeline"},
        "python_function": {"config": {"aggregation_strategy": "simple"}},
    }
    with pytest.raises(NotAdmitted, match="model_config"):
        task_of({"flavors": flavors}, "transformers")


def test_a_model_config_that_only_cuts_long_texts_is_taken_for_classification() -> None:
    config = {"truncation": True, "max_length": 16}
    meta: dict[str, Any] = {
        "flavors": {
            "transformers": {"instance_type": "TextClassificationPipeline"},
            "python_function": {"config": config},
        }
    }
    assert task_of(meta, "transformers") == "text-classification"
    assert truncation_of(meta) == config
    meta["flavors"]["transformers"]["instance_type"] = "FillMaskPipeline"
    with pytest.raises(NotAdmitted, match="model_config"):
        task_of(meta, "transformers")


def test_a_signature_of_numbers_is_refused(tmp_path: Path) -> None:
    folder = logged(tmp_path, "TextClassificationPipeline")
    meta = json.loads((folder / "MLmodel").read_text())
    meta["signature"]["inputs"] = '[{"type": "double", "name": "x"}]'
    (folder / "MLmodel").write_text(json.dumps(meta))
    with pytest.raises(NotAdmitted, match="takes one text per sample"):
        read_model(folder)


def test_example_texts_have_the_mask_that_fill_mask_needs(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    assert all(text.count("<mask>") == 1 for text in example_texts(tmp_path, "fill-mask").reshape(-1))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(NotAdmitted, match="no mask token"):
        example_texts(tmp_path, "fill-mask")


def test_texts_logged_as_an_example_are_a_column(tmp_path: Path) -> None:
    folder = logged(tmp_path, "TextClassificationPipeline")
    meta = json.loads((folder / "MLmodel").read_text())
    meta["saved_input_example_info"] = {"artifact_path": "input_example.json", "type": "json_object"}
    (folder / "MLmodel").write_text(json.dumps(meta))
    (folder / "input_example.json").write_text(json.dumps(TEXTS))
    example = read_model(folder).example
    assert example is not None
    assert example["input"].reshape(-1).tolist() == TEXTS


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # as where it is not installed
    with pytest.raises(ExportFailed, match="packages that are not installed here: import of transformers") as error:
        loaders.load(logged(tmp_path, "FillMaskPipeline"), "transformers", (), (), tabular=False)
    assert "shiplift[transformers]" in error.value.do


@pytest.mark.parametrize("settings", [{"outputs": ["logits"]}, {"postprocess": ["softmax"]}, {"torchscript": True}])
def test_settings_of_a_graph_s_outputs_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ExportFailed, match=f"`export.{next(iter(settings))}` is set"):
        _check_settings(Conversion.model_validate(settings))


# --- graphs ---


def test_a_size_that_the_exporter_knew_is_written_where_it_was_to_be_inferred() -> None:
    shape = helper.make_node("Shape", ["x"], ["batch"], start=0, end=1)
    concat = helper.make_node("Concat", ["batch", "rest"], ["shape"], axis=0)
    reshapes = [helper.make_node("Reshape", ["x", "shape"], [name]) for name in ("known", "unknown")]
    rest = helper.make_tensor("rest", TensorProto.INT64, [1], [-1])
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 2, 3]), ("known", ["n", 6]), ("unknown", ["n", None]))
    ]
    graph = helper.make_graph([shape, concat, *reshapes], "g", values[:1], values[1:], [rest], value_info=values[1:2])
    model = with_known_sizes(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]))
    onnx.checker.check_model(model, full_check=True)
    by_name = {node.output[0]: node for node in model.graph.node}
    assert list(by_name[by_name["known"].input[1]].input) == ["batch", "shiplift/size_6"]
    assert list(by_name["unknown"].input) == ["x", "shape"]
