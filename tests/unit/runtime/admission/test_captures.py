"""A spec that captures what the model lacks, or where nothing can be captured, is refused."""

from pathlib import Path

import pytest

from shiplift.runtime.admission.captures import check_capture
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.target import Target
from tests.unit.examples import site

SIGNATURE = Signature(
    inputs=(TensorSpec(name="email", datatype="BYTES", shape=(-1,)),),
    outputs=(TensorSpec(name="score", datatype="FP32", shape=(-1,)),),
)
CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/server:1")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{share: 1, hash: [emial]}", "capture.hash names 'emial'.*it has email, score"),
        ("{share: 1, omit: [input/score]}", "capture.omit names"),
        ("{share: 1, key: score}", "capture.key names 'score'"),
    ],
)
def test_a_column_that_the_model_lacks_is_refused(tmp_path: Path, written: str, said: str) -> None:
    with pytest.raises(SpecInvalid, match=said):
        check_capture(site(tmp_path), parse(f"capture: {written}"), SIGNATURE)


def test_a_cluster_that_keeps_nothing_servers_that_can_not_and_streamed_answers_are_refused(tmp_path: Path) -> None:
    spec = parse("capture: {share: 0.1, hash: [input/email], omit: [score], key: email}")
    check_capture(site(tmp_path), spec, SIGNATURE)
    with pytest.raises(SpecInvalid, match=r"nothing on this cluster keeps.* `capture: {}` in the values"):
        check_capture(site(tmp_path, place=CLUSTER), spec, SIGNATURE)
    keeps = site(tmp_path, place=CLUSTER.model_copy(update={"capture_uri": "http://capture.shiplift.svc:8009"}))
    gpu = Target(name="h200", accelerator="nvidia", server="nvidia", engine="tensorrt", image="example.org/triton:1")
    check_capture(keeps, spec, SIGNATURE, [Target()])
    check_capture(site(tmp_path), spec, SIGNATURE, [gpu])  # a machine keeps that package, but serves another
    with pytest.raises(SpecInvalid, match="NVIDIA's server, which serves target h200, can't capture"):
        check_capture(keeps, spec, SIGNATURE, [Target(), gpu])
    with pytest.raises(SpecInvalid, match="streamed"):
        check_capture(site(tmp_path), spec, SIGNATURE.model_copy(update={"streamed": True}))
    check_capture(site(tmp_path, place=CLUSTER), parse("capture: {share: 0}"), SIGNATURE)


@pytest.mark.parametrize(
    "written", ["{share: 2}", "{limit: 1gb}", "{retention: 0d}", "{hash: [a], omit: [a]}", "{key: a, omit: [a]}"]
)
def test_a_section_that_makes_no_sense_is_refused(written: str) -> None:
    with pytest.raises(SpecInvalid, match="capture"):
        parse(f"capture: {written}")
