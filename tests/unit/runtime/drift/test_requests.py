"""Captured rows become requests of the next version, if it takes them."""

from pathlib import Path

import pytest

from shiplift.runtime.admission.captured_requests import captured_requests
from shiplift.runtime.base.errors import DataInvalid, SpecInvalid
from shiplift.runtime.capture.folder import CaptureFolder
from shiplift.runtime.drift.requests import CAPTURED, write_captured
from shiplift.runtime.model.logged_requests import recorded
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.document import parse
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import site
from tests.unit.runtime.drift.test_window import written

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="pixels", datatype="FP32", shape=(-1, 2, 2)),
        TensorSpec(name="name", datatype="BYTES", shape=(-1, 1)),
    ),
    outputs=(),
)
TENSORS = SIGNATURE.model_dump(mode="json")
CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/server:1")


def test_rows_that_the_version_takes_are_its_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [
        written(tmp_path / "1", input__pixels=[[1.0, 2, 3, 4]] * 25, input__name=["Ada"] * 25),
        written(tmp_path / "2", input__pixels=[[1.0, 2, 3]] * 9, input__name=["of other shape"] * 9),
        written(tmp_path / "3", input__pixels=["text"] * 9, input__name=["of other type"] * 9),
        written(tmp_path / "4", input__pixels=[[1.0, 2, 3, 4]] * 9),
        written(tmp_path / "5", input__pixels=[[9.0] * 4], input__name=["refused"], state=["failed"]),
    ]
    assert write_captured(TENSORS, [str(file) for file in files]) == {"rows": 25, "seen": 53}
    first = recorded(Path(CAPTURED).read_bytes(), CAPTURED, SIGNATURE)[0]
    assert (first["pixels"].tolist(), first["name"].tolist()) == ([[1, 2], [3, 4]], ["Ada"])


def test_too_few_rows_broken_files_and_lost_shapes_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "9").write_bytes(b"no Parquet")
    few = written(tmp_path / "1", input__pixels=[[1.0, 2, 3, 4]] * 3, input__name=["Ada"] * 3)
    with pytest.raises(DataInvalid, match=r"takes 3 of 3 captured rows .* 20 are needed; files that can't be read: 9:"):
        write_captured(TENSORS, [str(few), "9"])
    shapeless = Signature(inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, -1, -1)),), outputs=())
    with pytest.raises(DataInvalid, match="a row keeps no shape"):
        write_captured(shapeless.model_dump(mode="json"), [])


def test_what_was_not_captured_in_the_clear_can_t_be_asked(tmp_path: Path) -> None:
    spec, store = parse("load: {requests: captured}"), ArtifactStore(f"file://{tmp_path}/artifacts")
    here = site(tmp_path)
    with pytest.raises(DataInvalid, match="nothing of 'digits' was captured"):
        captured_requests(here, "digits", spec, SIGNATURE, store)
    folder = CaptureFolder(tmp_path / "production" / "captured" / "digits")
    for listed, how in (({"hash": ("name",)}, "kept as a hash"), ({"omit": ("input/name",)}, "not kept")):
        folder.keep_settings(Capturing(share=1, limit_bytes=1, retention_s=1, **listed))
        with pytest.raises(SpecInvalid, match=f"input 'name' is {how}"):
            captured_requests(here, "digits", spec, SIGNATURE, store)
    with pytest.raises(SpecInvalid, match="nothing on this cluster keeps"):
        captured_requests(site(tmp_path, place=CLUSTER), "digits", spec, SIGNATURE, store)
