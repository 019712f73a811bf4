from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.admission.examples import missing_example
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.contracts import LoggedModel
from shiplift.runtime.records.model import Flavor
from shiplift.runtime.records.tensor import Signature, TensorSpec
from tests.unit.examples import tensor


def logged(*inputs: TensorSpec, flavor: Flavor = "pytorch") -> LoggedModel:
    return LoggedModel(flavor=flavor, signature=Signature(inputs=inputs, outputs=(tensor("y", -1),)), example=None)


def program(folder: Path, *arguments: Any, **keywords: Any) -> None:
    """A pt2 file that adds `left` and `right`."""
    import torch

    class Sum(torch.nn.Module):  # type: ignore[misc] # torch has no types here
        def forward(self, left: Any, right: Any) -> Any:
            return left + right

    (folder / "data").mkdir()
    torch.export.save(torch.export.export(Sum(), arguments, keywords), folder / "data" / "model.pt2")


def two() -> tuple[Any, Any]:
    import torch

    return torch.ones(3, 2), torch.zeros(3, 2)


@pytest.mark.slow
def test_the_example_in_a_pt2_file_is_named_by_the_signature(tmp_path: Path) -> None:
    program(tmp_path, *two())
    example, note = missing_example(tmp_path, logged(tensor("a", -1, 2), tensor("b", -1, 2)))
    assert {name: array.tolist() for name, array in example.items()} == {"a": [[1, 1]] * 3, "b": [[0, 0]] * 3}
    assert "pt2 file" in note


@pytest.mark.slow
def test_keyword_arguments_are_matched_by_name(tmp_path: Path) -> None:
    left, right = two()
    program(tmp_path, left, right=right)
    example, _ = missing_example(tmp_path, logged(tensor("right", -1, 2), tensor("x", -1, 2)))
    assert example["right"].tolist() == [[0, 0]] * 3
    assert example["x"].tolist() == [[1, 1]] * 3


@pytest.mark.parametrize(
    ("inputs", "message"),
    [((tensor("a", -1, 2),), "do not match"), ((tensor("a", -1, 2), tensor("b", -1, 3)), r"'b' has shape \(3, 2\)")],
)
def test_an_example_that_does_not_fit_is_refused(tmp_path: Path, inputs: Any, message: str) -> None:
    program(tmp_path, *two())
    with pytest.raises(NotAdmitted, match=message):
        missing_example(tmp_path, logged(*inputs))


@pytest.mark.parametrize("body", [b"", b"\x80\x04cos\nsystem\n", b"PK\x03\x04"])
def test_a_pickle_in_place_of_the_example_is_never_run(tmp_path: Path, body: bytes) -> None:
    import zipfile

    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "model.pt2", "w") as archive:
        archive.writestr("model/data/sample_inputs/model.pt", body)
    with pytest.raises(NotAdmitted, match="example inputs in the pt2 file"):
        missing_example(tmp_path, logged(tensor("a", -1, 2)))


def test_a_signature_with_known_sizes_determines_an_example(tmp_path: Path) -> None:
    specs = (tensor("x", -1, 3), tensor("ids", -1, 2, datatype="INT64"), tensor("image", 1, 2, datatype="UINT8"))
    example, note = missing_example(tmp_path, logged(*specs, flavor="onnx"))
    assert [(array.shape, str(array.dtype)) for array in example.values()] == [
        ((4, 3), "float32"),
        ((4, 2), "int64"),
        ((1, 2), "uint8"),
    ]
    assert set(np.unique(example["ids"])) <= {0, 1}
    assert "made from its signature" in note


@pytest.mark.parametrize("shape", [(-1, 1 << 30), (1 << 40, 3), (-1, 1 << 20, 1 << 20, 1 << 20)])
def test_a_signature_that_claims_too_much_is_refused_before_memory_is_taken(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    with pytest.raises(NotAdmitted, match="the limit is 268435456"):
        missing_example(tmp_path, logged(tensor("x", *shape)))


@pytest.mark.parametrize("spec", [tensor("t", -1, 1, datatype="BYTES"), tensor("t", -1, -1, 3)])
def test_text_and_free_sizes_determine_none(tmp_path: Path, spec: TensorSpec) -> None:
    with pytest.raises(NotAdmitted, match="its signature determines none: 't' is") as error:
        missing_example(tmp_path, logged(spec))
    assert "input_example=x" in error.value.do
