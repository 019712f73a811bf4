"""What is read of a Triton repository: its models, what can't be served, and every mistake with file and line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shiplift.runtime.admission.adopting import repository
from shiplift.runtime.admission.adopting.entry import read
from shiplift.runtime.records.adopted import FoundModel, FoundRepository
from tests import triton_repository
from tests.triton_repository import PLAIN


def found(root: Path) -> FoundRepository:
    return FoundRepository.model_validate(read(folder=str(root)))


def models(root: Path) -> dict[str, FoundModel]:
    result = found(root)
    assert not result.mistakes
    return {model.name: model for model in result.models}


def changed(root: Path, file: str, old: str, new: str) -> None:
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, new, 1))


def both_calls_itself(root: Path) -> None:
    changed(root, "both/config.pbtxt", 'model_name: "plain"', 'model_name: "both"')
    changed(root, "both/config.pbtxt", 'key: "y" value: "m"', 'key: "half" value: "m"')


def test_every_model_is_found_with_what_it_calls(tmp_path: Path) -> None:
    known = models(triton_repository.write(tmp_path))
    assert set(known) == {"plain", "halve", "both", "bare"}
    assert known["both"].members == ("plain", "halve")
    assert known["plain"].called_by == ("both",)
    assert known["plain"].versions == (2,)  # Triton serves the newest, unless a policy says otherwise
    assert known["halve"].code == ("halve/1/helper.py", "halve/1/model.py", "halve/config.pbtxt")
    assert any("no dynamic_batching" in gain for gain in known["plain"].gains)


def test_a_graph_without_a_configuration_gets_the_one_that_triton_infers(tmp_path: Path) -> None:
    bare = models(triton_repository.write(tmp_path))["bare"]
    assert (bare.backend, bare.max_batch) == ("onnxruntime", 4)
    assert [spec.shape for spec in bare.signature.inputs] == [(-1, 4)]
    assert 'name: "x"' in bare.config


def test_versions_are_those_that_the_policy_serves(tmp_path: Path) -> None:
    triton_repository.write(tmp_path)
    changed(tmp_path, "plain/config.pbtxt", "max_batch_size: 8", "max_batch_size: 8 version_policy { all {} }")
    assert models(tmp_path)["plain"].versions == (1, 2)


LEFT_OUT: dict[str, tuple[str, str, str, str]] = {
    "no backend tensorrt": ("bare/config.pbtxt", "", "", 'backend: "tensorrt"'),
    "has none": ("plain/config.pbtxt", "KIND_CPU", "KIND_GPU", ""),
    "sequence_batching": ("plain/config.pbtxt", "instance_group", "sequence_batching {} instance_group", ""),
    "decoupled": (
        "plain/config.pbtxt",
        "instance_group",
        "model_transaction_policy {decoupled: true} instance_group",
        "",
    ),
    "libraries or agents": (
        "plain/config.pbtxt",
        "instance_group",
        'model_operations { op_library_filename: "evil.so" } instance_group',
        "",
    ),
    "calls other models": ("halve/1/helper.py", "FACTOR", "x = lambda pb: pb.InferenceRequest()\nFACTOR", ""),
    "EXECUTION_ENV_PATH": (
        "halve/config.pbtxt",
        "max_batch",
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "e.tar.gz" } } max_batch',
        "",
    ),
    "first dimension of rows": ("halve/config.pbtxt", "max_batch_size: 8", "max_batch_size: 0", ""),
}


@pytest.mark.parametrize("why", LEFT_OUT)
def test_what_the_bundled_server_lacks_is_named(tmp_path: Path, why: str) -> None:
    triton_repository.write(tmp_path)
    file, old, new, whole = LEFT_OUT[why]
    if whole:
        (tmp_path / file).write_text(whole)
    else:
        changed(tmp_path, file, old, new)
    known = models(tmp_path)
    assert why in known[file.partition("/")[0]].left_out
    if not whole:
        assert "can't be served" in known["both"].left_out


def _write(file: str, text: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)

    return write


MISTAKES: dict[str, Callable[[Path], object]] = {
    "both/config.pbtxt:7: it calls 'plainer', which is not a model": lambda root: changed(
        root, "both/config.pbtxt", 'model_name: "plain"', 'model_name: "plainer"'
    ),
    "both/config.pbtxt:7: plain has no output 'z'": lambda root: changed(
        root, "both/config.pbtxt", 'key: "y" value: "m"', 'key: "z" value: "m"'
    ),
    "both/config.pbtxt:7: it calls version 7 of plain": lambda root: changed(
        root, "both/config.pbtxt", '"plain" model_version: -1', '"plain" model_version: 7'
    ),
    "both/config.pbtxt:7: these ensembles call each other: both -> both": both_calls_itself,
    "plain/config.pbtxt:2:": _write("plain/config.pbtxt", PLAIN.replace("platform", "plattform")),
    "plain/config.pbtxt:2: platform 'onnx' is unknown": _write(
        "plain/config.pbtxt", PLAIN.replace("onnxruntime_onnx", "onnx")
    ),
    "plain/config.pbtxt:1: its name is 'halve', and its folder's 'plain'": _write(
        "plain/config.pbtxt", PLAIN.replace('name: "plain"', 'name: "halve"')
    ),
    "plain/config.pbtxt:5: the file 'labels.txt' is not": lambda root: (root / "plain/labels.txt").unlink(),
    "plain/v3: a version's folder is called by its number": _write("plain/v3/model.onnx", ""),
    "plain/03: a version's folder": _write("plain/03/model.onnx", ""),
    "plain/: its name is also that of 'PLAIN'": lambda root: triton_repository.graph(root / "PLAIN/1/model.onnx", 1),
    "halve/config.pbtxt: it names no inputs and outputs": lambda root: (root / "halve/config.pbtxt").unlink(),
    "other/config.pbtxt: neither it nor": _write("other/1/weights.bin", ""),
    "other/: it has no version": _write("other/config.pbtxt", ""),
    "is a symbolic link": lambda root: (root / "plain/3").symlink_to("/etc"),
    "it is a model's folder": _write("config.pbtxt", ""),
    "plain/config.pbtxt: it can't be read": lambda root: (root / "plain/config.pbtxt").write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_place_and_nothing_else_is_found(tmp_path: Path, mistake: str) -> None:
    triton_repository.write(tmp_path)
    MISTAKES[mistake](tmp_path)
    result = found(tmp_path)
    assert not result.models
    assert any(mistake in str(each) for each in result.mistakes), [str(each) for each in result.mistakes]


def test_a_file_that_is_too_large_and_an_empty_folder_are_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "it has no model" in str(found(tmp_path).mistakes[0])
    triton_repository.write(tmp_path)
    monkeypatch.setattr(repository, "MAX_FILE_MB", 0)
    assert "the limit is 0" in str(found(tmp_path).mistakes[0])
