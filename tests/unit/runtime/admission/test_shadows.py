"""A shadow of a model that may have states or side effects, or where nothing can be copied, is refused unless told."""

from pathlib import Path

import pytest

from shiplift.runtime.admission.shadows import check_shadow
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.kinds.contract import Contract, DeclaredGraph, DeclaredPython
from shiplift.runtime.records.site import Cluster, GatewayRef
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.document import parse
from tests.unit.examples import artifact, site

SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1,)),),
    outputs=(TensorSpec(name="score", datatype="FP32", shape=(-1,)),),
)
GRAPH = DeclaredGraph(signature=SIGNATURE, example=artifact())
PYTHON = DeclaredPython(signature=SIGNATURE, example=artifact())
STREAMED = GRAPH.model_copy(update={"signature": SIGNATURE.model_copy(update={"streamed": True})})
NO_GATEWAY = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/server:1")
CLUSTER = NO_GATEWAY.model_copy(update={"gateway": GatewayRef(name="shiplift", namespace="models")})
STATES = "serving: {sequence_batching: {states: {x: score}}}\n"


@pytest.mark.parametrize(
    ("contract", "shadow", "place", "more", "said"),
    [
        (GRAPH, "", None, "", ""),
        (GRAPH, "", CLUSTER, "", ""),
        (GRAPH, "", NO_GATEWAY, "", "only a Gateway copies requests"),
        (PYTHON, "", None, "", "of kind python may do more than answer.*"),
        (PYTHON, ", stateful: true", None, "", ""),
        (STREAMED, ", stateful: true", None, "", "streamed"),
        (STREAMED, "", CLUSTER, "", ""),
        (GRAPH, "", None, STATES, "keeps states"),
        (GRAPH, ", stateful: true", None, STATES, "to which sequence"),
        (GRAPH, ", stateful: true", CLUSTER, STATES, "share is 0.2, and a model"),
        (GRAPH, ", stateful: true, share: 1", CLUSTER, STATES, ""),
        (GRAPH, ", agreement_percent: {score: 90}", None, "", ""),
        (GRAPH, ", agreement_percent: {label: 90}", None, "", "names 'label'; the model has score"),
        (GRAPH, ", agreement_percent: 90", CLUSTER, "", "a gateway drops the answers"),
    ],
)
def test_what_can_be_shadowed(
    tmp_path: Path, contract: Contract, shadow: str, place: Cluster | None, more: str, said: str
) -> None:
    spec = parse(f"{more}promotion: {{shadow: {{for: 1h{shadow}}}}}")
    home = site(tmp_path, place=place) if place else site(tmp_path)
    if not said:
        return check_shadow(home, spec, contract)
    with pytest.raises(SpecInvalid, match=said):
        check_shadow(home, spec, contract)
    return None
