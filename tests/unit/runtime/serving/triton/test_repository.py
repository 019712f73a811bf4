import contextlib
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.serving import ServerKind
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton import repository
from shiplift.runtime.serving.triton.config import ModelDescription, parse, render
from shiplift.runtime.serving.triton.hosted_backend import ONNX_MODEL
from shiplift.runtime.serving.triton.repository import (
    GOLDEN,
    golden_arrays,
    install,
    install_all,
    raw_bytes,
    reconfigure,
    retire,
    serve_only,
    write_package,
)
from shiplift.runtime.spec.serving_settings import Serving, Warmup
from tests.unit.examples import config, signature, tensor

EXAMPLE = {"input": np.arange(8, dtype=np.float32).reshape(2, 4)}


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def make(
    to: Path,
    version: int = 1,
    *,
    server: ServerKind = "bundled",
    serving: Serving | None = None,
    model: bytes = b"onnx",
    tensors: Signature | None = None,
    example: Any = None,
    guards: tuple[Guard, ...] = (),
) -> Path:
    onnx = to.with_name(f"{to.name}-onnx")
    onnx.mkdir(parents=True)
    (onnx / "model.onnx").write_bytes(model + str(version).encode())
    (onnx / "weights.bin").write_bytes(b"weights")
    to.mkdir()
    description = ModelDescription(
        name="digits",
        version=version,
        signature=tensors or signature(),
        config=config(8),
        serving=serving or Serving(labels=("a", "b")),
    )
    inputs = example or EXAMPLE
    golden = golden_arrays(inputs, {"output": np.zeros(2)})
    return write_package(to, description, onnx, server, example=inputs, golden=golden, guards=guards)


def test_a_package_holds_the_model_its_labels_its_warm_up_and_its_golden_requests(tmp_path: Path) -> None:
    package = make(tmp_path / "package", 3)
    assert files(package) == [
        "digits/3/model.onnx",
        "digits/3/weights.bin",
        "digits/config.pbtxt",
        "digits/labels.3.txt",
        "digits/warmup/3-input-0",
        "golden.npz",
    ]
    assert (package / "digits" / "labels.3.txt").read_text() == "a\nb\n"
    assert set(load_npz(package / GOLDEN)) == {"input/input", "output/output"}


def test_only_the_version_that_a_pipeline_was_checked_with_is_served(tmp_path: Path) -> None:
    folder = make(tmp_path / "package", 3) / "digits"
    shutil.copytree(folder / "3", folder / "2")
    file = folder / "config.pbtxt"
    config_ = parse(file.read_text())
    config_.version_policy.specific.versions.insert(0, 2)
    file.write_text(render(config_))
    serve_only(tmp_path / "package", "digits", 3)
    assert list(parse(file.read_text()).version_policy.specific.versions) == [3]
    assert not (folder / "2").exists()
    assert (folder / "3" / "model.onnx").is_file()


def test_the_configuration_names_the_files_beside_it(tmp_path: Path) -> None:
    folder = make(tmp_path / "package", 3) / "digits"
    written = parse((folder / "config.pbtxt").read_text())
    assert written.output[0].label_filename == "labels.3.txt"
    assert [(warmup.batch_size, warmup.inputs["input"].input_data_file) for warmup in written.model_warmup] == [
        (1, "3-input-0"),
        (8, "3-input-0"),
    ]
    assert (folder / "warmup" / "3-input-0").read_bytes() == EXAMPLE["input"][0].tobytes()


@pytest.mark.parametrize(
    ("server", "datatype", "code"),
    [
        ("bundled", "FP32", False),
        ("bundled", "BYTES", True),
        ("nvidia", "FP32", False),
        ("nvidia", "BYTES", False),
    ],
)
def test_only_text_on_the_bundled_server_needs_code_in_the_package(
    tmp_path: Path, server: ServerKind, datatype: str, *, code: bool
) -> None:
    tensors = Signature(inputs=signature().inputs, outputs=(tensor("output", -1, datatype=datatype),))
    package = make(tmp_path / "package", 3, server=server, tensors=tensors)
    at = package / "digits" / "3"
    assert (at / "model.py").exists() == (at / "python_host" / "worker.py").exists() == code
    assert not code or (at / "inner.py").read_bytes() == ONNX_MODEL.read_bytes()
    config_ = parse((package / "digits" / "config.pbtxt").read_text())
    assert config_.backend == ("python" if code else "onnxruntime")


@pytest.mark.parametrize(
    ("server", "datatype", "written"),
    [
        ("bundled", "FP32", {"guards.json"}),
        ("bundled", "BYTES", {"guards.json", "guards.py"}),
        ("nvidia", "FP32", set()),
    ],
)
def test_guards_are_in_the_package_for_a_server_that_has_them(
    tmp_path: Path, server: ServerKind, datatype: str, written: set[str]
) -> None:
    tensors = Signature(inputs=signature().inputs, outputs=(tensor("output", -1, datatype=datatype),))
    guards = (Guard(input="input", column=2, low=0.1, missing=False), Guard(input="città", values=("Łódź", 'a "b"')))
    serving = Serving(warmup=Warmup(source="zeros"))
    package = make(tmp_path / "package", 3, server=server, tensors=tensors, guards=guards, serving=serving)
    folder = package / "digits" / "3"
    assert {file.name for file in folder.glob("guards.*")} == written
    entries = parse((package / "digits" / "config.pbtxt").read_text()).model_warmup
    assert entries[0].inputs["input"].zero_data == (not written)  # zeros may be refused
    if written:
        read = Guards.read(str(folder / "guards.json"))
        assert [guard.values for guard in read.all] == [[], ["Łódź", 'a "b"']]
        assert read.reason({"input": np.full((1, 4), 0.05), "città": np.array([["Łódź"]], object)})


def test_a_package_without_labels_and_warm_up_has_neither(tmp_path: Path) -> None:
    package = make(tmp_path / "package", serving=Serving(warmup=False))
    assert [name for name in files(package) if "label" in name or "warmup" in name] == []


@pytest.mark.parametrize("source", ["zeros", "random", "recorded"])
def test_a_model_is_warmed_up_with_the_data_that_the_spec_asks_for(tmp_path: Path, source: Any) -> None:
    folder = make(tmp_path / "package", 3, serving=Serving(warmup=Warmup(source=source, count=5))) / "digits"
    entries = parse((folder / "config.pbtxt").read_text()).model_warmup
    assert [(entry.batch_size, entry.count) for entry in entries] == [(1, 5), (8, 5)]
    assert [entry.inputs["input"].zero_data for entry in entries] == [source == "zeros"] * 2
    file = folder / "warmup" / "3-input-0"
    assert file.exists() == (source != "zeros")
    if source != "zeros":
        sample = np.frombuffer(file.read_bytes(), np.float32)
        assert sample.shape == (4,)
        assert (sample == EXAMPLE["input"][0]).all() == (source == "recorded")
        assert 0 <= sample.min() <= sample.max() <= 7  # within the example


def test_the_same_description_gives_the_same_bytes(tmp_path: Path) -> None:
    left, right = make(tmp_path / "left"), make(tmp_path / "right")
    assert files(left) == files(right)
    assert all((left / name).read_bytes() == (right / name).read_bytes() for name in files(left))


def test_inputs_of_text_and_of_a_single_number_are_warmed_up_too(tmp_path: Path) -> None:
    tensors = Signature(
        inputs=(tensor("a", -1, datatype="BYTES"), tensor("b", -1), tensor("c", -1, 2, datatype="BYTES")),
        outputs=signature().outputs,
    )
    example = {
        "a": np.array(["ä", "b"], dtype=object),
        "b": np.array([1.5, 2], np.float32),
        "c": np.array([["x", "yz"], ["", ""]], dtype=object),
    }
    package = make(tmp_path / "package", tensors=tensors, example=example)
    warmup = package / "digits" / "warmup"
    assert (warmup / "1-input-0").read_bytes() == struct.pack("<I", 2) + "ä".encode()
    assert (warmup / "1-input-1").read_bytes() == struct.pack("<f", 1.5)
    assert (warmup / "1-input-2").read_bytes() == struct.pack("<I", 1) + b"x" + struct.pack("<I", 2) + b"yz"
    entry = parse((package / "digits" / "config.pbtxt").read_text()).model_warmup[0]
    assert {name: list(tensor_.dims) for name, tensor_ in entry.inputs.items()} == {"a": [1], "b": [1], "c": [2]}


def test_text_is_written_with_its_length_before_it() -> None:
    expected = struct.pack("<I", 3) + b"abc" + struct.pack("<I", 0) + struct.pack("<I", 2) + "ß".encode()
    for array in (np.array(["abc", "", "ß"]), np.array(["abc", b"", "ß"], dtype=object)):
        assert raw_bytes(array) == expected


def test_numbers_are_written_as_they_lie_in_memory() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert raw_bytes(array.T) == np.ascontiguousarray(array.T).tobytes()


# --- a server's repository ---


def put(tmp_path: Path, version: int, name: str = "digits", model: bytes = b"onnx") -> Path:
    package = make(
        tmp_path / f"package-{version}-{model.decode()}-{len(list(tmp_path.iterdir()))}", version, model=model
    )
    install(package, tmp_path / "models", source="digits", name=name)
    return tmp_path / "models" / name


def test_a_model_is_installed_under_any_name(tmp_path: Path) -> None:
    folder = put(tmp_path, 3, "digits--next")
    assert parse((folder / "config.pbtxt").read_text()).name == "digits--next"
    assert installed(folder) == 3
    assert not (tmp_path / "models" / "digits").exists()
    assert (folder / "3" / "model.onnx").read_bytes() == b"onnx3"


def test_the_version_before_stays_until_it_is_retired(tmp_path: Path) -> None:
    put(tmp_path, 3)
    folder = put(tmp_path, 4)
    assert installed(folder) == 4
    assert {"3/model.onnx", "4/model.onnx", "labels.3.txt", "labels.4.txt", "warmup/3-input-0"} <= set(files(folder))
    retire(tmp_path / "models", "digits")
    assert files(folder) == [
        "4/model.onnx",
        "4/weights.bin",
        "config.pbtxt",
        "labels.4.txt",
        "warmup/4-input-0",
    ]


def test_retiring_keeps_versions_apart_whose_numbers_look_alike(tmp_path: Path) -> None:
    put(tmp_path, 1)
    folder = put(tmp_path, 11)
    retire(tmp_path / "models", "digits")
    assert {name.split("/")[0] for name in files(folder)} == {"11", "config.pbtxt", "labels.11.txt", "warmup"}
    assert files(folder / "warmup") == ["11-input-0"]


def test_retiring_twice_or_a_missing_version_changes_nothing(tmp_path: Path) -> None:
    retire(tmp_path / "models", "nothing")
    folder = put(tmp_path, 3)
    before = files(folder)
    for _ in range(2):
        retire(tmp_path / "models", "digits")
    assert files(folder) == before


def test_a_version_already_in_place_is_not_touched(tmp_path: Path) -> None:
    folder = put(tmp_path, 3)
    (folder / "3" / "__pycache__").mkdir()
    (folder / "3" / "__pycache__" / "model.pyc").touch()
    inode = (folder / "3" / "model.onnx").stat().st_ino
    put(tmp_path, 3)
    assert (folder / "3" / "model.onnx").stat().st_ino == inode


def test_the_same_version_with_other_bytes_is_replaced(tmp_path: Path) -> None:
    put(tmp_path, 3)
    folder = put(tmp_path, 3, model=b"better")
    assert (folder / "3" / "model.onnx").read_bytes() == b"better3"


class Killed(BaseException):
    """Stands for SIGKILL at a line."""


def killed_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change of the filesystem counts; after so many the process dies."""
    left = [calls]

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*arguments, **keywords)

        return call

    for owner, name in (
        (shutil, "copyfile"),
        (shutil, "copytree"),
        (shutil, "rmtree"),
        (os, "replace"),
        (os, "rename"),
    ):
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    monkeypatch.setattr(Path, "write_text", counting(Path.write_text))
    monkeypatch.setattr(Path, "unlink", counting(Path.unlink))


@pytest.mark.parametrize("calls", range(14))
def test_an_installation_killed_anywhere_leaves_the_old_model_or_the_new_and_can_be_done_again(
    tmp_path: Path, calls: int
) -> None:
    folder = put(tmp_path, 3)
    new = make(tmp_path / "new", 4)
    with pytest.MonkeyPatch.context() as patch:
        killed_after(calls, patch)
        with contextlib.suppress(Killed):
            install(new, tmp_path / "models", source="digits", name="digits")
    version = installed(folder)
    assert version in (3, 4)
    serves(folder, version)
    serves(folder, 3)  # a server that still runs it can be restarted from it
    install(new, tmp_path / "models", source="digits", name="digits")
    serves(folder, 4)
    retire(tmp_path / "models", "digits")
    assert files(folder) == [
        "4/model.onnx",
        "4/weights.bin",
        "config.pbtxt",
        "labels.4.txt",
        "warmup/4-input-0",
    ]


@pytest.mark.parametrize("calls", range(6))
def test_retiring_killed_anywhere_can_be_done_again(tmp_path: Path, calls: int) -> None:
    put(tmp_path, 3)
    folder = put(tmp_path, 4)
    with pytest.MonkeyPatch.context() as patch:
        killed_after(calls, patch)
        with contextlib.suppress(Killed):
            retire(tmp_path / "models", "digits")
    serves(folder, 4)
    retire(tmp_path / "models", "digits")
    assert {name.split("/")[0] for name in files(folder)} == {"4", "config.pbtxt", "labels.4.txt", "warmup"}


def installed(folder: Path) -> int:
    """The version that a model's configuration names."""
    return int(parse((folder / "config.pbtxt").read_text()).version_policy.specific.versions[0])


def serves(folder: Path, version: int) -> None:
    """Whether everything a version needs is there."""
    assert (folder / str(version) / "model.onnx").read_bytes() == f"onnx{version}".encode()
    assert (folder / str(version) / "weights.bin").is_file()
    assert (folder / f"labels.{version}.txt").read_text() == "a\nb\n"
    assert (folder / "warmup" / f"{version}-input-0").read_bytes() == EXAMPLE["input"][0].tobytes()


def test_a_fetched_package_takes_another_configuration(tmp_path: Path) -> None:
    package = make(tmp_path / "package", 3)
    reconfigure(package, "digits", config(32, 500, 2, 4))
    changed = parse((package / "digits" / "config.pbtxt").read_text())
    assert (changed.max_batch_size, changed.dynamic_batching.max_queue_delay_microseconds) == (32, 500)
    assert (changed.instance_group[0].count, changed.parameters["intra_op_thread_count"].string_value) == (2, "4")


def test_a_model_that_another_one_calls_does_not_wait_again_for_its_batch(tmp_path: Path) -> None:
    package = make(tmp_path / "package")
    shutil.copytree(package / "digits", package / "digits--tensors")
    reconfigure(package, "digits", config(32, 500, 2, 4), called=("--tensors",))
    written = {name: parse((package / name / "config.pbtxt").read_text()) for name in ("digits", "digits--tensors")}
    delays = [each.dynamic_batching.max_queue_delay_microseconds for each in written.values()]
    assert (delays, {each.max_batch_size for each in written.values()}) == ([500, 0], {32})


def test_golden_requests_and_their_answers_have_different_names() -> None:
    both = golden_arrays({"x": np.zeros(1)}, {"x": np.ones(1)})
    assert {name: array.tolist() for name, array in both.items()} == {"input/x": [0], "output/x": [1]}
    assert repository.GOLDEN == "golden.npz"


def test_all_models_of_a_package_are_installed_and_tuned_together(tmp_path: Path) -> None:
    package = make(tmp_path / "package")
    shutil.copytree(package / "digits", package / "digits--tensors")
    reconfigure(package, "digits", config(32, 500, 2, 4))
    install_all(package, tmp_path / "models", source="digits", name="digits--next")
    written = {folder.name: parse((folder / "config.pbtxt").read_text()) for folder in (tmp_path / "models").iterdir()}
    assert set(written) == {"digits--next", "digits--next--tensors"}
    assert {(name, entry.name, entry.max_batch_size) for name, entry in written.items()} == {
        (name, name, 32) for name in written
    }
