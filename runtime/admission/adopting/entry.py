"""The reading of a repository that someone wants to adopt, in a sandbox: its files are their author's."""

from pathlib import Path
from typing import Any

from shiplift.runtime.admission.adopting.repository import read_repository
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model import graph_contract
from shiplift.runtime.records.tensor import Signature


def read(*, folder: str) -> dict[str, Any]:
    """The repository in `folder`, as JSON of `FoundRepository`."""
    return read_repository(Path(folder), signature_of).model_dump(mode="json")


def signature_of(graph: Path) -> Signature | None:
    """The tensors of an ONNX graph, in its own shapes; None if it can't be read."""
    try:
        contract = graph_contract.read(graph, states={})
    except NotAdmitted:
        return None
    if contract is None:
        return None
    own = {
        spec.name: spec.model_copy(update={"shape": spec.shape[1:]}) if spec.name in contract.whole else spec
        for spec in (*contract.signature.inputs, *contract.signature.outputs)
    }
    return Signature(
        inputs=tuple(own[spec.name] for spec in contract.signature.inputs),
        outputs=tuple(own[spec.name] for spec in contract.signature.outputs),
    )
