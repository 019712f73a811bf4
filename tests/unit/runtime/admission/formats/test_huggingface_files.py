import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from shiplift.runtime.admission.formats import mlmodel
from shiplift.runtime.admission.formats.huggingface_files import problems
from shiplift.runtime.admission.scan import objections, refusal, scan_files
from shiplift.runtime.base.files import regular_files


def safetensors(*ranges: tuple[int, int], data: int = 8) -> bytes:
    header = {f"w{at}": {"dtype": "F32", "shape": [1], "data_offsets": list(r)} for at, r in enumerate(ranges)}
    body = json.dumps(header).encode()
    return struct.pack("<Q", len(body)) + body + b"\0" * data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(safetensors((0, 4), (4, 8)))
    (tmp_path / "config.json").write_text('{"vocab_size": 3, "architectures": ["BertModel"]}')
    words = {"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "[PAD]"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    return tmp_path


def found(folder: Path) -> str:
    return "; ".join(f"{file}: {what}" for file, what in problems(regular_files(folder)))


def test_a_pipeline_as_transformers_saves_it_has_no_problem(folder: Path) -> None:
    assert found(folder) == ""


def test_the_scan_of_such_a_folder_finds_them(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "MLmodel").write_text('{"flavors": {"transformers": {"task": "fill-mask"}}}')  # no line of its own
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "x--y.Z"}}')
    scan = scan_files(folder, tmp_path_factory.mktemp("examples"), pickle="sandbox", unpacked_mb=10)
    assert "names code in the artifact" in refusal(objections(scan)).what


def test_weights_outside_of_the_model_are_refused() -> None:
    (problem,) = mlmodel.problems({"flavors": {"transformers": {"model_binary": "../other"}}})
    assert "`model_binary: '../other'`, which is not a path in the model" in problem


def write(name: str, text: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (write("config.json", '{"auto_map": {"AutoModel": "x--y.Z"}}'), "config.json: `auto_map` names code"),
        (write("tokenizer_config.json", '{"a": [{"auto_map": ["x.Y", null]}]}'), "`auto_map` names code"),
        (write("config.json", "{"), "config.json: it can't be read as JSON"),
        (write("pytorch_model.bin", b"PK\x03\x04"), "pytorch_model.bin: weights are read from .safetensors only"),
        (remove("model.safetensors"), "no weights as .safetensors: save the model with `safe_serialization=True`"),
        (remove("tokenizer.json"), "no tokenizer.json"),
        (write("config.json", '{"vocab_size": 2}'), "tokens up to id 2, but the model has embeddings for 2"),
        (write("tokenizer.json", "[1]"), "tokenizer.json: it can't be read as a tokenizer"),
        (write("tokenizer.json", '{"model": {"vocab": {"a": "x"}}}'), "it can't be read as a tokenizer"),
        (write("model.safetensors", b"\xff" * 16), "its header claims"),
        (write("model.safetensors", safetensors((0, 4), (2, 8))), "its tensors overlap"),
        (write("model.safetensors", safetensors((0, 4), (4, 800))), "or lie outside the file"),
        (write("model.safetensors", safetensors((8, 4))), "its tensors overlap"),
        (write("modules.json", '[{"type": "os.path"}]'), "'os.path' is not one of `sentence_transformers`"),
        (write("2_Dense_config.json", '{"activation_function": "os.system"}'), "'os.system' is not one of `torch.nn`"),
    ],
)
def test_what_is_unsafe_or_does_not_fit_is_refused_with_the_reason(
    folder: Path, change: Callable[[Path], object], reason: str
) -> None:
    change(folder)
    assert reason in found(folder)
